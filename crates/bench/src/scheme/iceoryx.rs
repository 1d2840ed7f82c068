//! iceoryx2: publish-subscribe of loaned slices in shared memory. The publisher blocks when the subscriber's
//! queue is full, so that nothing is dropped. An event service wakes a receiver that sleeps. The receiver
//! takes samples until there are none before it sleeps again.

use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::{single, End};
use crate::protocol::Open;
use crate::waiting;

/// Bytes of samples in a subscriber's queue: as many as other schemes have in flight.
const QUEUE_BYTES: usize = 2 << 20;
/// Looks at the queue before a sleep.
const SPINS: u32 = 200;
/// A sleeper looks this often by itself.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Messages for each notification of a producer, at most half a queue; each flush notifies as well.
const NOTIFY_EVERY: usize = 8;

type Service = ipc::Service;

fn queue(open: &Open) -> usize {
    (QUEUE_BYTES / open.message_bytes).clamp(2, 64)
}

/// A direction of a connection.
struct Services {
    node: Node<Service>,
    base: String,
}

impl Services {
    fn new(base: &str) -> Result<Services> {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new().create::<Service>().map_err(|e| anyhow!("no iceoryx2 node: {e:?}"))?;
        Ok(Services { node, base: base.to_owned() })
    }

    fn name(&self, what: &str) -> Result<ServiceName> {
        ServiceName::new(&format!("{}/{what}", self.base)).map_err(|e| anyhow!("service name: {e:?}"))
    }

    fn data(
        &self,
        direction: &str,
        open: &Open,
    ) -> Result<iceoryx2::service::port_factory::publish_subscribe::PortFactory<Service, [u8], ()>> {
        self.node
            .service_builder(&self.name(direction)?)
            .publish_subscribe::<[u8]>()
            .max_publishers(1)
            .max_subscribers(1)
            .enable_safe_overflow(false)
            .subscriber_max_buffer_size(queue(open))
            .subscriber_max_borrowed_samples(2)
            .open_or_create()
            .map_err(|e| anyhow!("cannot open the iceoryx2 service {direction}: {e:?}"))
    }

    fn event(&self, direction: &str) -> Result<iceoryx2::service::port_factory::event::PortFactory<Service>> {
        self.node
            .service_builder(&self.name(&format!("{direction}-event"))?)
            .event()
            .open_or_create()
            .map_err(|e| anyhow!("cannot open the iceoryx2 event {direction}: {e:?}"))
    }

    fn sender(
        &self,
        direction: &str,
        open: &Open,
    ) -> Result<(Publisher<Service, [u8], ()>, Notifier<Service>)> {
        let publisher = self
            .data(direction, open)?
            .publisher_builder()
            .initial_max_slice_len(open.message_bytes)
            .max_loaned_samples(2)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .map_err(|e| anyhow!("cannot make a publisher: {e:?}"))?;
        let notifier = self.event(direction)?.notifier_builder().create();
        Ok((publisher, notifier.map_err(|e| anyhow!("cannot make a notifier: {e:?}"))?))
    }

    fn receiver(
        &self,
        direction: &str,
        open: &Open,
    ) -> Result<(Subscriber<Service, [u8], ()>, Listener<Service>)> {
        let subscriber = self
            .data(direction, open)?
            .subscriber_builder()
            .buffer_size(queue(open))
            .create()
            .map_err(|e| anyhow!("cannot make a subscriber: {e:?}"))?;
        let listener = self.event(direction)?.listener_builder().create();
        Ok((subscriber, listener.map_err(|e| anyhow!("cannot make a listener: {e:?}"))?))
    }
}

/// Ports that nobody has connected to yet.
pub struct Listening {
    end: IceoryxEnd,
    base: String,
}

impl Listening {
    /// Services with a name that only this process uses.
    pub fn new(open: &Open) -> Result<Listening> {
        single(open)?;
        let base = format!("pd-bench-{}-{}", std::process::id(), pd_harness::measure::now_ns());
        let end = IceoryxEnd::new(&base, "back", "forth", open)?;
        Ok(Listening { end, base })
    }
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        Ok(self.base.clone())
    }

    fn accept(self: Box<Self>, _from: &str) -> Result<Box<dyn End>> {
        Ok(Box::new(self.end))
    }
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    single(open)?;
    Ok(Box::new(IceoryxEnd::new(to, "forth", "back", open)?))
}

/// Fields are dropped in this order: ports before their node.
struct IceoryxEnd {
    publisher: Publisher<Service, [u8], ()>,
    notifier: Notifier<Service>,
    subscriber: Subscriber<Service, [u8], ()>,
    listener: Listener<Service>,
    _services: Services,
    sent: usize,
    notify_every: usize,
}

impl IceoryxEnd {
    fn new(base: &str, out: &str, back: &str, open: &Open) -> Result<IceoryxEnd> {
        let notify_every = (queue(open) / 2).clamp(1, NOTIFY_EVERY);
        let services = Services::new(base)?;
        let (publisher, notifier) = services.sender(out, open)?;
        let (subscriber, listener) = services.receiver(back, open)?;
        Ok(IceoryxEnd {
            publisher,
            notifier,
            subscriber,
            listener,
            _services: services,
            sent: 0,
            notify_every,
        })
    }

    fn notify(&self) -> Result<()> {
        self.notifier.notify().map_err(|e| anyhow!("cannot notify: {e:?}"))?;
        Ok(())
    }
}

impl End for IceoryxEnd {
    fn send(&mut self, _connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let mut sample =
            self.publisher.loan_slice(len).map_err(|e| anyhow!("no memory to send from: {e:?}"))?;
        fill(sample.payload_mut());
        sample.send().map_err(|e| anyhow!("cannot send: {e:?}"))?;
        self.sent += 1;
        if self.sent % self.notify_every == 0 {
            self.notify()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.notify()
    }

    fn recv(&mut self, _connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        loop {
            let mut received = self.subscriber.receive();
            if let Ok(None) = received {
                waiting::look(SPINS, || {
                    received = self.subscriber.receive();
                    !matches!(received, Ok(None))
                });
            }
            match received {
                Ok(Some(sample)) => {
                    take(sample.payload());
                    return Ok(sample.payload().len());
                }
                Ok(None) => {
                    let woken = self.listener.timed_wait(|_| (), SLEEP_MAX);
                    woken.map_err(|e| anyhow!("cannot wait: {e:?}")).context("iceoryx2 listener")?;
                    waiting::slept();
                }
                Err(e) => bail!("cannot receive: {e:?}"),
            }
        }
    }
}
