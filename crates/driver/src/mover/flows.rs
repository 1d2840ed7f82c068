//! The flows of a mover, by number. One that has never had anything to do is kept small: most connections of
//! a busy machine are idle.
use super::flow::Flow;
use crate::ids::{ClientId, FlowId, TenantId};
use crate::messages::{Endpoint, NewFlow};

/// See the module.
#[derive(Debug, Default)]
pub struct Flows(Vec<Place>);

/// What there is of one number.
#[derive(Debug, Default)]
pub enum Place {
    #[default]
    Free,
    /// Has never had anything to do.
    Fresh(Box<NewFlow>),
    Flow(Box<Flow>),
}

impl Flows {
    /// Adds one; what had its number before is no more.
    pub fn add(&mut self, new: Box<NewFlow>) {
        let id = new.id;
        *self.place(id) = Place::Fresh(new);
    }

    /// The flow, which is going to do something.
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

    /// The flow, if it has ever done something.
    #[inline]
    pub fn used(&mut self, id: FlowId) -> Option<&mut Flow> {
        match self.0.get_mut(id.index())? {
            Place::Flow(flow) => Some(flow),
            _ => None,
        }
    }

    /// What there is of a number.
    pub fn place(&mut self, id: FlowId) -> &mut Place {
        let index = id.index();
        if self.0.len() <= index {
            self.0.resize_with(index + 1, Place::default);
        }
        &mut self.0[index]
    }

    /// All numbers that there may be.
    pub fn ids(&self) -> impl Iterator<Item = FlowId> {
        (0..self.0.len()).map(FlowId::at)
    }

    /// Takes one out.
    pub fn remove(&mut self, id: FlowId) -> Option<Box<Flow>> {
        self.get(id)?;
        match std::mem::take(&mut self.0[id.index()]) {
            Place::Flow(flow) => Some(flow),
            _ => None,
        }
    }

    /// Another tenant's from now on. Says whether it has ever done something.
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

    /// Its source, if that is the client, is no more: the client's number may be another's soon.
    pub fn forget_source(&mut self, id: FlowId, client: ClientId) {
        match self.0.get_mut(id.index()) {
            Some(Place::Flow(flow)) => flow.forget_source(client),
            Some(Place::Fresh(new)) => new.source.forget(client),
            _ => {}
        }
    }
}

impl Place {
    /// Lets `change` see each end that the flow has or is going to have.
    pub fn each_end(&mut self, mut change: impl FnMut(&mut Endpoint)) {
        match self {
            Self::Free => {}
            Self::Fresh(new) => [&mut new.source, &mut new.destination].into_iter().for_each(change),
            Self::Flow(flow) => flow.each_end(&mut change),
        }
    }

    /// Whether all whose sends it carries, now or later, are such.
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
