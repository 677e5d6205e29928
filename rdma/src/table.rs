//! The connections of a transport, by place (a dense number, reused) and by name (never reused).

use crate::transport::ConnId;

/// Bits of a [`ConnId`] that hold the place; the rest is a serial number.
const PLACE_BITS: u32 = 16;
/// Most connections a table holds.
const PLACES_MAX: usize = 1 << PLACE_BITS;

/// A bounded number of connections, each in a place of its own while it lives.
pub(crate) struct Table<C> {
    /// Those that were ever taken: a walk over all costs what there is, and not what there may be.
    places: Vec<Option<(ConnId, C)>>,
    /// Of these.
    free: Vec<usize>,
    most: usize,
    serial: u64,
}

impl<C> Table<C> {
    /// A table of `places` places, at most 65,536.
    pub(crate) fn new(places: usize) -> Self {
        let most = places.min(PLACES_MAX);
        Self { places: Vec::with_capacity(most), free: Vec::with_capacity(most), most, serial: 0 }
    }

    /// How many connections live.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The place and name for a connection to come; `None` if the table is full.
    pub(crate) fn reserve(&mut self) -> Option<(usize, ConnId)> {
        let unused = (self.places.len() < self.most).then_some(self.places.len());
        let place = self.free.last().copied().or(unused)?;
        self.serial += 1;
        Some((place, ConnId((self.serial << PLACE_BITS) | place as u64)))
    }

    /// Puts a connection in the place reserved last.
    pub(crate) fn insert(&mut self, id: ConnId, conn: C) {
        match self.free.pop() {
            Some(place) => self.places[place] = Some((id, conn)),
            None => self.places.push(Some((id, conn))),
        }
    }

    /// Ends a connection's stay; its place is free.
    pub(crate) fn remove(&mut self, place: usize) -> Option<(ConnId, C)> {
        let entry = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some(entry)
    }

    /// The connection in a place.
    pub(crate) fn at(&mut self, place: usize) -> Option<&mut C> {
        self.places.get_mut(place)?.as_mut().map(|(_, conn)| conn)
    }

    /// The connection with this name, if it still lives.
    pub(crate) fn named(&self, id: ConnId) -> Option<&C> {
        let (_, conn) = self.places.get(self.place_of(id)?)?.as_ref()?;
        Some(conn)
    }

    /// Where the connection with this name is, if it still lives.
    pub(crate) fn place_of(&self, id: ConnId) -> Option<usize> {
        let place = (id.0 % PLACES_MAX as u64) as usize;
        let (living, _) = self.places.get(place)?.as_ref()?;
        (*living == id).then_some(place)
    }

    /// Every living connection.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &C> {
        self.places.iter().flatten().map(|(_, conn)| conn)
    }

    /// Every living connection with its place.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut C)> {
        self.places
            .iter_mut()
            .enumerate()
            .filter_map(|(place, entry)| entry.as_mut().map(|(_, conn)| (place, conn)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_connection_and_never_to_the_next_in_its_place() {
        let mut table = Table::new(1);
        let (place, first) = table.reserve().unwrap();
        table.insert(first, 'a');
        assert_eq!((table.place_of(first), table.named(first)), (Some(place), Some(&'a')));
        assert!(table.reserve().is_none(), "it is full");
        assert_eq!(table.remove(place), Some((first, 'a')));
        let (again, second) = table.reserve().unwrap();
        table.insert(second, 'b');
        assert_eq!((again, table.place_of(second)), (place, Some(place)));
        assert_eq!((table.place_of(first), table.len()), (None, 1));
    }
}
