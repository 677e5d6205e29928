//! Failing, and getting everything back: a queue pair in its error state completes what is posted,
//! and only then are the rows out of the device's reach.

use super::link::{Posted, State};
use super::pump::request_id;
use super::{LinkFailure, Notice, Outcome, Port, ReadEngine, SEQUENCE_BITS};
use crate::transport::ReadStatus;

impl ReadEngine {
    /// Moves the link's queue pair to the error state: to renew it (`None`), or because it ends. A
    /// link that is failing already keeps the first reason to end.
    pub(super) fn fail(&mut self, place: usize, why: Option<LinkFailure>, port: &mut impl Port) {
        let Some(link) = self.link(place) else { return };
        match link.state {
            State::Draining(first) => link.state = State::Draining(first.or(why)),
            State::Opening if why.is_none() => {}
            State::Opening => link.state = State::Draining(why),
            State::Up => {
                link.state = State::Draining(why);
                let sequence = link.next_sequence;
                link.next_sequence += 1;
                self.counters.failed += 1;
                if port.fail(place, request_id(place, sequence)) {
                    self.enter_mark(place, sequence);
                }
            }
        }
    }

    fn enter_mark(&mut self, place: usize, sequence: u64) {
        if let Some(link) = self.link(place) {
            link.posted.push_back(Posted { sequence, op: None, bytes: 0, last: false });
            self.posted += 1;
        }
    }

    /// A request has completed without its bytes: nothing is proved about those before it, but none
    /// of them is posted any more.
    pub(super) fn on_failure(
        &mut self,
        place: usize,
        sequence: u64,
        outcome: Outcome,
        port: &mut impl Port,
    ) {
        let why = match outcome {
            // The first failure is the cause; the flushes behind it are its effect.
            Outcome::Done | Outcome::Flushed => None,
            Outcome::Refused => Some(LinkFailure::Refused),
            Outcome::Failed(status) => Some(LinkFailure::Device(status)),
        };
        let was_up = self.link(place).is_some_and(|link| link.is_up());
        if why.is_some() || was_up {
            self.fail(place, why.or(Some(LinkFailure::Device(0))), port);
        }
        while let Some((op, _)) = self.pop_posted_at(place, sequence) {
            let (Some(index), at) = op else { continue };
            if let Some(op) = self.ops[index as usize].as_mut()
                && outcome == Outcome::Refused
                && at == sequence
            {
                op.fate.get_or_insert(ReadStatus::Refused);
            }
        }
    }

    /// Takes the oldest posted request off the books, if it is not younger than `sequence`: its
    /// operation, and whether it was the last of it.
    pub(super) fn pop_posted(
        &mut self,
        place: usize,
        sequence: u64,
    ) -> Option<(Option<u32>, bool)> {
        let ((op, _), last) = self.pop_posted_at(place, sequence)?;
        Some((op, last))
    }

    fn pop_posted_at(&mut self, place: usize, until: u64) -> Option<((Option<u32>, u64), bool)> {
        let link = self.links.get_mut(place)?.as_mut()?;
        let posted = link.posted.pop_front_if(|posted| posted.sequence <= until)?;
        self.posted -= 1;
        self.credit.put_back(posted.bytes);
        Some(((posted.op, posted.sequence), posted.last))
    }

    /// Requests from this one on were never posted.
    pub(super) fn forget_from(&mut self, place: usize, id: u64) {
        let sequence = id & ((1 << SEQUENCE_BITS) - 1);
        let Some(link) = self.links.get_mut(place).and_then(Option::as_mut) else { return };
        while let Some(posted) = link.posted.pop_back_if(|posted| posted.sequence >= sequence) {
            self.posted -= 1;
            self.credit.put_back(posted.bytes);
        }
    }

    /// If the link is failing and nothing of it is posted any more: ends or renews it.
    pub(super) fn finish_drain(&mut self, place: usize) {
        let Some(link) = self.link(place) else { return };
        let State::Draining(why) = link.state else { return };
        if !link.posted.is_empty() {
            return;
        }
        link.slicing = None;
        if why.is_none() {
            link.state = State::Opening;
        }
        for index in 0..self.ops.len() as u32 {
            let mine = self.ops[index as usize].as_ref().filter(|op| op.place == place);
            match mine.map(|op| op.fate) {
                None => {}
                Some(Some(fate)) => self.end(index, fate),
                Some(None) if why.is_none() => self.read_again(index),
                Some(None) => self.end(index, ReadStatus::PeerLost),
            }
        }
        match why {
            None => self.notices.push(Notice::Relink(place)),
            Some(why) => self.bury(place, why),
        }
    }

    fn bury(&mut self, place: usize, why: LinkFailure) {
        let link = self.links[place].take().expect("the link was there a moment ago");
        self.line.retain(|&waiting| waiting != place);
        for read in link.waiting {
            self.finish(read, ReadStatus::PeerLost);
        }
        self.notices.push(match why {
            LinkFailure::Closed => Notice::Gone(place),
            why => Notice::Lost(place, why),
        });
    }
}
