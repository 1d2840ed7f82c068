//! The flows of a mover, by number. A flow that has never had anything to do is kept small: most connections of a busy machine are idle.
use super::flow::Flow;
use crate::ids::{ClientId, FlowId, TenantId};
use crate::messages::{Endpoint, NewFlow};

/// See the module.
#[derive(Debug, Default)]
pub struct Flows(Vec<Place>);

/// State of one number.
#[derive(Debug, Default)]
pub enum Place {
    #[default]
    Free,
    /// A flow that has never had anything to do.
    Fresh(Box<NewFlow>),
    Flow(Box<Flow>),
}

impl Flows {
    /// Adds a flow. Drops the flow that had its number before.
    pub fn add(&mut self, new: Box<NewFlow>) {
        let id = new.id;
        *self.place(id) = Place::Fresh(new);
    }

    /// Returns the flow, which is going to do something.
    #[inline]
    pub fn get(&mut self, id: FlowId) -> Option<&mut Flow> {
        let place = self.0.get_mut(id.index())?;
        if let Place::Fresh(_) = place {
            wake(place);
        }
        match place {
            Place::Flow(flow) => Some(flow),
            _ => None,
        }
    }

    /// Returns the flow, if it has ever done something.
    #[inline]
    pub fn used(&mut self, id: FlowId) -> Option<&mut Flow> {
        match self.0.get_mut(id.index())? {
            Place::Flow(flow) => Some(flow),
            _ => None,
        }
    }

    /// Returns the state of a number.
    pub fn place(&mut self, id: FlowId) -> &mut Place {
        let index = id.index();
        if self.0.len() <= index {
            self.0.resize_with(index + 1, Place::default);
        }
        &mut self.0[index]
    }

    /// Returns the flow of a number, which another driver may have made up.
    pub fn known(&mut self, id: FlowId) -> Option<&mut Place> {
        self.0.get_mut(id.index()).filter(|place| !matches!(place, Place::Free))
    }

    /// Iterates over all numbers, free ones as well.
    pub fn ids(&self) -> impl Iterator<Item = FlowId> {
        (0..self.0.len()).map(FlowId::at)
    }

    /// Takes a flow out.
    pub fn remove(&mut self, id: FlowId) -> Option<Box<Flow>> {
        self.get(id)?;
        match std::mem::take(&mut self.0[id.index()]) {
            Place::Flow(flow) => Some(flow),
            _ => None,
        }
    }

    /// Changes the tenant of a flow. Returns whether the flow has ever done something.
    pub fn set_tenant(&mut self, id: FlowId, tenant: TenantId) -> bool {
        match self.0.get_mut(id.index()) {
            Some(Place::Flow(flow)) => {
                flow.tenant = tenant;
                true
            }
            Some(Place::Fresh(new)) => {
                new.tenant = tenant;
                false
            }
            _ => false,
        }
    }

    /// Forgets the source of a flow, if that is `client`, which is no more. The client's number may be reused soon.
    pub fn forget_source(&mut self, id: FlowId, client: ClientId) {
        match self.0.get_mut(id.index()) {
            Some(Place::Flow(flow)) => flow.forget_source(client),
            Some(Place::Fresh(new)) => new.source.forget(client),
            _ => {}
        }
    }
}

impl Place {
    /// Calls `change` with each end that the flow has or is going to have.
    pub fn each_end(&mut self, mut change: impl FnMut(&mut Endpoint)) {
        match self {
            Self::Free => {}
            Self::Fresh(new) => [&mut new.source, &mut new.destination].into_iter().for_each(change),
            Self::Flow(flow) => flow.each_end(&mut change),
        }
    }

    /// Tells whether `are` holds for each end that sends by this flow, now or later.
    pub fn has_senders(&self, are: impl Fn(&Endpoint) -> bool) -> bool {
        match self {
            Self::Free => true,
            Self::Fresh(new) => are(&new.source),
            Self::Flow(flow) => flow.has_senders(are),
        }
    }
}

#[cold]
fn wake(place: &mut Place) {
    if let Place::Fresh(new) = std::mem::take(place) {
        *place = Place::Flow(Box::new(Flow::new(*new)));
    }
}
