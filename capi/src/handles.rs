//! What C programs hold: numbers that stand for values. Each names a place, how often the place was used before, and the
//! kind of its value, so that a handle that was freed, or one of another kind, is recognised.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::status::{E_BUSY, E_HANDLE, E_SYSTEM, Refusal, Result};

const PLACE_BITS: u32 = 24;
const LIFE_BITS: u32 = 36;
/// Most values of one kind at once.
const PLACES_MAX: usize = 1 << PLACE_BITS;
const LIFE_MASK: u64 = (1 << LIFE_BITS) - 1;
const KIND_SHIFT: u32 = PLACE_BITS + LIFE_BITS;

/// The values of one kind. Places are used again in the order in which they were freed, so that a life is not reached
/// again within years.
pub(crate) struct Table<T> {
    kind: u64,
    /// As messages call one.
    noun: &'static str,
    state: Mutex<State<T>>,
}

struct State<T> {
    places: Vec<Place<T>>,
    free: VecDeque<u32>,
}

struct Place<T> {
    life: u64,
    content: Content<T>,
}

enum Content<T> {
    Free,
    /// A call has taken the value and may give it back.
    Taken,
    Value(T),
}

impl<T> Table<T> {
    /// `kind`, from 1 to 15, is in no other table.
    pub(crate) const fn new(kind: u64, noun: &'static str) -> Self {
        let state = State { places: Vec::new(), free: VecDeque::new() };
        Self { kind, noun, state: Mutex::new(state) }
    }

    /// A handle for the value.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let mut state = self.state();
        let at = match state.free.pop_front() {
            Some(at) => at as usize,
            None if state.places.len() < PLACES_MAX => {
                state.places.push(Place { life: 1, content: Content::Free });
                state.places.len() - 1
            }
            None => {
                let words = format!("{PLACES_MAX} {} handles are in use: free some", self.noun);
                return Err(Refusal::new(E_SYSTEM, words));
            }
        };
        let place = &mut state.places[at];
        place.content = Content::Value(value);
        Ok(self.kind << KIND_SHIFT | place.life << PLACE_BITS | at as u64)
    }

    /// Looks at the value, with the table locked.
    pub(crate) fn with<R>(&self, handle: u64, look: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut state = self.state();
        match &mut self.place(&mut state, handle)?.content {
            Content::Value(value) => Ok(look(value)),
            Content::Free | Content::Taken => Err(self.busy()),
        }
    }

    /// A copy of the value.
    pub(crate) fn get(&self, handle: u64) -> Result<T>
    where
        T: Clone,
    {
        self.with(handle, |value| value.clone())
    }

    /// The value itself. The handle is busy until [`Table::put_back`] or [`Table::forget`].
    pub(crate) fn take(&self, handle: u64) -> Result<T> {
        let mut state = self.state();
        let content = &mut self.place(&mut state, handle)?.content;
        match std::mem::replace(content, Content::Taken) {
            Content::Value(value) => Ok(value),
            Content::Free | Content::Taken => Err(self.busy()),
        }
    }

    pub(crate) fn put_back(&self, handle: u64, value: T) {
        let mut state = self.state();
        if let Ok(place) = self.place(&mut state, handle) {
            place.content = Content::Value(value);
        }
    }

    /// Ends the handle of a value that was taken.
    pub(crate) fn forget(&self, handle: u64) {
        let mut state = self.state();
        if let Ok(place) = self.place(&mut state, handle) {
            place.life = (place.life + 1) & LIFE_MASK;
            place.content = Content::Free;
            state.free.push_back((handle % (1 << PLACE_BITS)) as u32);
        }
    }

    /// Ends the handle. The value is dropped with the table unlocked.
    pub(crate) fn remove(&self, handle: u64) -> Result<T> {
        let value = self.take(handle)?;
        self.forget(handle);
        Ok(value)
    }

    fn place<'a>(&self, state: &'a mut State<T>, handle: u64) -> Result<&'a mut Place<T>> {
        let (kind, life) = (handle >> KIND_SHIFT, handle >> PLACE_BITS & LIFE_MASK);
        let at = (handle % (1 << PLACE_BITS)) as usize;
        let place = state.places.get_mut(at).filter(|_| kind == self.kind);
        let is_live =
            |place: &&mut Place<T>| place.life == life && !matches!(place.content, Content::Free);
        place.filter(is_live).ok_or_else(|| self.unknown(handle))
    }

    #[cold]
    fn unknown(&self, handle: u64) -> Refusal {
        let noun = self.noun;
        let words = match handle {
            0 => format!("the {noun} handle is zero: use one that a call has given"),
            _ => {
                format!("{handle:#x} is no {noun}: it was freed or used up, or is of another kind")
            }
        };
        Refusal::new(E_HANDLE, words)
    }

    #[cold]
    fn busy(&self) -> Refusal {
        let words = format!("another thread is in a call that uses up this {}", self.noun);
        Refusal::new(E_BUSY, words)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_ends_with_its_value() {
        let table = Table::new(3, "number");
        let first = table.insert(7).unwrap();
        assert_eq!(table.get(first).unwrap(), 7);
        assert_eq!(table.remove(first).unwrap(), 7);
        assert_eq!(table.get(first).unwrap_err().status, E_HANDLE);
        assert_eq!(table.remove(first).unwrap_err().status, E_HANDLE, "freed twice");
        let second = table.insert(8).unwrap();
        assert_ne!(second, first, "the place is the same, the life is not");
        assert_eq!(table.get(first).unwrap_err().status, E_HANDLE);
        assert_eq!(table.get(second).unwrap(), 8);
    }

    #[test]
    fn a_handle_does_not_come_back() {
        let table = Table::new(3, "number");
        let mut ended = Vec::new();
        for life in 0..5 {
            let live = [0, 1, 2].map(|place| (table.insert((life, place)).unwrap(), place));
            for (handle, place) in live {
                assert_eq!(table.get(handle).unwrap(), (life, place));
            }
            for handle in &ended {
                assert_eq!(table.get(*handle).unwrap_err().status, E_HANDLE, "{handle:#x}");
            }
            for (handle, place) in live {
                assert_eq!(table.remove(handle).unwrap(), (life, place));
                ended.push(handle);
            }
        }
        assert_eq!(table.state().places.len(), 3, "places are used again");
    }

    #[test]
    fn lives_begin_anew_behind_the_last() {
        let table = Table::new(3, "number");
        let first = table.insert(7).unwrap();
        table.state().places[0].life = LIFE_MASK;
        let last = first | LIFE_MASK << PLACE_BITS;
        assert_eq!(table.remove(last).unwrap(), 7);
        let next = table.insert(8).unwrap();
        assert_eq!((next >> KIND_SHIFT, table.get(next).unwrap()), (3, 8));
        assert_eq!(table.get(last).unwrap_err().status, E_HANDLE);
    }

    #[test]
    fn zero_other_kinds_and_what_never_was_are_refused() {
        let (numbers, words) = (Table::new(1, "number"), Table::new(2, "word"));
        let number = numbers.insert(7).unwrap();
        words.insert("seven").unwrap();
        assert_eq!(words.get(number).unwrap_err().status, E_HANDLE);
        assert!(numbers.get(0).unwrap_err().words.contains("is zero"));
        assert_eq!(numbers.get(number + 1).unwrap_err().status, E_HANDLE);
        assert_eq!(numbers.get(u64::MAX).unwrap_err().status, E_HANDLE);
    }

    #[test]
    fn a_taken_value_is_busy_until_it_is_back() {
        let table = Table::new(1, "number");
        let handle = table.insert(7).unwrap();
        assert_eq!(table.take(handle).unwrap(), 7);
        assert_eq!(table.take(handle).unwrap_err().status, E_BUSY);
        assert_eq!(table.get(handle).unwrap_err().status, E_BUSY);
        table.put_back(handle, 9);
        assert_eq!(table.get(handle).unwrap(), 9);
    }
}
