//! Table of items by number. Each number has a place, which may be free.
use crate::ids::Number;
use std::marker::PhantomData;

/// See the module.
#[derive(Debug)]
pub struct Table<I, T> {
    places: Vec<Option<T>>,
    numbers: PhantomData<I>,
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self { places: Vec::new(), numbers: PhantomData }
    }
}

impl<I: Number, T> Table<I, T> {
    pub fn get(&self, id: I) -> Option<&T> {
        self.places.get(id.place())?.as_ref()
    }

    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.places.get_mut(id.place())?.as_mut()
    }

    /// Puts an item at a number. Drops the item that had the number.
    pub fn put(&mut self, id: I, item: T) {
        if self.places.len() <= id.place() {
            self.places.resize_with(id.place() + 1, || None);
        }
        self.places[id.place()] = Some(item);
    }

    pub fn remove(&mut self, id: I) -> Option<T> {
        self.places.get_mut(id.place())?.take()
    }

    /// Adds a number, without an item.
    pub fn add(&mut self) -> I {
        self.places.push(None);
        I::of_place(self.places.len() - 1)
    }

    /// Returns the number of places, free ones included.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Iterates over all numbers, also those without an item.
    pub fn ids(&self) -> impl Iterator<Item = I> {
        (0..self.places.len()).map(I::of_place)
    }

    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(at, item)| Some((I::of_place(at), item.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(at, item)| Some((I::of_place(at), item.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClientId;

    #[test]
    fn numbers_are_of_something_or_of_nothing() {
        let mut table = Table::<ClientId, char>::default();
        let [a, b, c] = [0, 1, 4].map(ClientId::new);
        assert_eq!((table.add(), table.len()), (a, 1));
        table.put(c, 'c');
        table.put(b, 'b');
        *table.get_mut(b).unwrap() = 'd';
        assert_eq!((table.get(a), table.get(b), table.get(ClientId::new(9))), (None, Some(&'d'), None));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(b, &'d'), (c, &'c')]);
        table.iter_mut().for_each(|(_, item)| *item = 'x');
        assert_eq!(
            (table.remove(b), table.remove(b), table.remove(ClientId::new(9))),
            (Some('x'), None, None)
        );
        assert_eq!((table.ids().count(), table.add()), (5, ClientId::new(5)));
    }
}
