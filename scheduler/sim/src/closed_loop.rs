//! Clients that send a task when their last one has ended: as many tasks of a model as it has clients, at any time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use baton_core::Nanos;

use crate::arrivals::Arrived;
use crate::scenario::{Scenario, SimModel};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct ClosedLoop {
    due: BinaryHeap<Reverse<(Nanos, u32)>>,
    slos: Vec<Nanos>,
    end: Nanos,
}

impl ClosedLoop {
    /// Every client sends its first task at the beginning.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let models = scenario.models.iter().enumerate();
        let clients = models.flat_map(|(m, model)| {
            std::iter::repeat_n(Reverse((Nanos::ZERO, m as u32)), model.clients as usize)
        });
        Self {
            due: clients.collect(),
            slos: scenario.models.iter().map(SimModel::slo).collect(),
            end: scenario.end(),
        }
    }

    /// A client sends its next task then.
    pub(crate) fn again(&mut self, model: u32, at: Nanos) {
        if at < self.end {
            self.due.push(Reverse((at, model)));
        }
    }

    /// The moment of the next arrival; [`Nanos::MAX`] when there is none.
    pub(crate) fn due(&self) -> Nanos {
        self.due.peek().map_or(Nanos::MAX, |&Reverse((at, _))| at)
    }

    /// Takes the next arrival.
    pub(crate) fn take(&mut self) -> Option<Arrived> {
        let Reverse((at, model)) = self.due.pop()?;
        Some(Arrived { at, model, deadline: at + self.slos[model as usize] })
    }
}
