//! Whatever happens in whatever order: one outcome per task, and every slot comes back.

use std::time::Duration;

use baton_rdma::wire::Role;
use baton_types::{Nanos, TaskId};
use proptest::prelude::*;

use super::world::*;
use crate::{Client, Deadline, Ticket};

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit {
        model: usize,
        deadline_ms: u64,
    },
    /// The indices below name any task ever submitted, ended or not.
    Answer(prop::sample::Index),
    EndByThread(prop::sample::Index, u8),
    EndByBackend(prop::sample::Index),
    /// And these any ticket still held.
    Cancel(prop::sample::Index),
    DropTicket(prop::sample::Index),
    Poll(prop::sample::Index),
    Pass(u64),
    /// The scheduler dies.
    Lose,
    /// One is there (again) and calls the client so.
    TakeBack(u32),
    /// An operator adds the third model, or removes it.
    Toggle,
}

/// The models that there may be: those of [`MODELS`], and one that comes and goes.
const NAMES: [&str; 3] = [MODELS[0], MODELS[1], "gamma"];

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0..3usize, 1..40u64).prop_map(|(model, deadline_ms)| Step::Submit { model, deadline_ms }),
        3 => index().prop_map(Step::Answer),
        2 => (index(), 1..3u8).prop_map(|(task, kind)| Step::EndByThread(task, kind)),
        1 => index().prop_map(Step::EndByBackend),
        1 => index().prop_map(Step::Cancel),
        2 => index().prop_map(Step::DropTicket),
        2 => index().prop_map(Step::Poll),
        1 => (1..30u64).prop_map(Step::Pass),
        1 => Just(Step::Lose),
        1 => (3..6u32).prop_map(Step::TakeBack),
        2 => Just(Step::Toggle),
    ]
}

struct Story {
    world: World,
    client: Client,
    /// By every name they ever had.
    tasks: Vec<(usize, TaskId)>,
    submitted: u64,
    tickets: Vec<Ticket>,
    taken: u64,
    abandoned: u64,
    /// What the client is called.
    number: u32,
    /// The third model's id, while there is one.
    third: Option<u32>,
    /// How often there was one.
    toggled: u32,
    /// Bytes of one model's slab.
    memory_each: u64,
}

impl Story {
    fn new() -> Self {
        let (world, client) =
            World::open_with(|config| config.lease_grace(Duration::from_millis(20)));
        let (tasks, tickets) = (Vec::new(), Vec::new());
        let (submitted, taken, abandoned) = (0, 0, 0);
        let (number, third, toggled) = (MEMBER, None, 0);
        let memory_each = world.memory_bytes() / 2;
        Self {
            world,
            client,
            tasks,
            submitted,
            tickets,
            taken,
            abandoned,
            number,
            third,
            toggled,
            memory_each,
        }
    }

    fn tell(&mut self, step: Step) {
        match step {
            Step::Submit { model, deadline_ms } => self.submit(model, deadline_ms),
            Step::Pass(ms) => self.world.pass(Nanos::from_millis(ms)),
            Step::Lose => self.world.lose_scheduler(),
            Step::TakeBack(number) => self.take_back(number),
            Step::Toggle => self.toggle(),
            Step::Answer(index) | Step::EndByThread(index, _) | Step::EndByBackend(index) => {
                if !self.tasks.is_empty() {
                    let (model, task) = self.tasks[index.index(self.tasks.len())];
                    self.end(step, model, task);
                }
            }
            Step::Cancel(index) | Step::DropTicket(index) | Step::Poll(index) => {
                if !self.tickets.is_empty() {
                    self.touch(step, index.index(self.tickets.len()));
                }
            }
        }
    }

    fn submit(&mut self, model: usize, deadline_ms: u64) {
        let Ok(handle) = self.client.model(NAMES[model]) else { return assert_eq!(model, 2) };
        let Ok(input) = handle.input() else { return };
        let deadline = Deadline::within(Duration::from_millis(deadline_ms));
        let Ok(ticket) = self.world.submit_input(input, deadline) else {
            return assert!(self.client.loss().is_some());
        };
        self.submitted += 1;
        self.tasks.push((model, ticket.task()));
        self.tickets.push(ticket);
        self.world.steps(2);
    }

    fn toggle(&mut self) {
        if self.client.loss().is_some() {
            return;
        }
        match self.third.take() {
            Some(id) => self.world.remove_model(id),
            None => {
                self.toggled += 1;
                let id = 2 | self.toggled << 16;
                self.world.control.take();
                self.world.add_model(model_desc(id), NAMES[2]);
                let heard = self.world.control.take();
                let Some(Heard::Slab { first_slot, .. }) = heard.last() else {
                    panic!("{heard:?}")
                };
                self.world.slab_known(self.number, *first_slot);
                self.third = Some(id);
                assert!(self.client.model(NAMES[2]).is_ok());
            }
        }
    }

    /// If the client looks for a scheduler: what it submits again then goes by other names.
    fn take_back(&mut self, number: u32) {
        if self.client.loss().is_none() {
            return;
        }
        self.world.threads.iter_mut().for_each(|thread| drop(thread.take()));
        self.world.take_back(number);
        (self.number, self.third) = (number, None);
        assert_eq!(self.client.loss(), None);
        self.world.connect_backend(Role::Backend, TOKEN + u64::from(number));
        for (model, thread) in self.world.threads.iter_mut().enumerate() {
            for heard in thread.take() {
                if let Heard::Submit { task, .. } = heard {
                    self.tasks.push((model, task));
                }
            }
        }
    }

    fn end(&mut self, step: Step, model: usize, task: TaskId) {
        match step {
            Step::EndByThread(..) if self.world.threads[model % 2].conn.is_none() => {}
            Step::EndByThread(_, kind) => self.world.end(model % 2, task, kind, 1),
            Step::EndByBackend(_) => {
                self.world.backend.send(&task_end(task, 2, 5), &[]);
                self.world.steps(2);
            }
            _ => self.world.answer(task, &[7; OUTPUT]),
        }
    }

    fn touch(&mut self, step: Step, at: usize) {
        match step {
            Step::Cancel(_) => self.tickets[at].cancel(),
            Step::DropTicket(_) => {
                drop(self.tickets.swap_remove(at));
                self.abandoned += 1;
            }
            _ => {
                if self.tickets[at].poll().is_some() {
                    drop(self.tickets.swap_remove(at));
                    self.taken += 1;
                }
            }
        }
        self.world.steps(1);
    }

    /// Long after the last deadline.
    fn conclude(mut self) {
        self.world.pass(Nanos::from_millis(100));
        assert!(self.world.io.is_some());
        for ticket in &mut self.tickets {
            assert!(ticket.poll().is_some(), "{:?} has no outcome", ticket.task());
            self.taken += 1;
        }
        let counters = self.client.counters();
        assert_eq!(counters.submitted, self.submitted);
        assert_eq!(counters.submitted, counters.completed + counters.dropped + counters.failed);
        assert_eq!(counters.submitted, self.taken + self.abandoned);
        assert_eq!(self.client.slots_in_use(), 0);
        self.tickets.clear();
        self.world.steps(1);
        let models = self.client.models().len() as u64;
        assert_eq!(self.world.memory_bytes(), models * self.memory_each, "of the models there are");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_outcome_per_task_and_no_slot_lost(steps in prop::collection::vec(step(), 1..60)) {
        let mut story = Story::new();
        steps.into_iter().for_each(|step| story.tell(step));
        story.conclude();
    }
}
