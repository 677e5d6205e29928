//! Slabs against a naive model of them.

use std::sync::Arc;

use baton_rdma::{InputMut, OutputMut, OutputRef, ReadLease, SlabError, SlabSet};
use baton_types::{ModelId, TaskId};
use proptest::prelude::*;

use crate::{INPUT, OUTPUT, slabs, spec};

#[derive(Clone, Copy, Debug)]
enum Op {
    Acquire(u32),
    GiveUp(usize),
    Submit(usize, u8),
    Renew(usize),
    Read(usize),
    EndLease(usize),
    Land(usize),
    Commit(usize, u32),
    EndLanding(usize),
    Complete(usize),
    Take(usize),
    EndTake(usize),
    Release(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let pick = 0usize..64;
    prop_oneof![
        3 => (0u32..3).prop_map(Op::Acquire),
        1 => pick.clone().prop_map(Op::GiveUp),
        3 => (pick.clone(), any::<u8>()).prop_map(|(pick, fill)| Op::Submit(pick, fill)),
        2 => pick.clone().prop_map(Op::Renew),
        3 => pick.clone().prop_map(Op::Read),
        2 => pick.clone().prop_map(Op::EndLease),
        2 => pick.clone().prop_map(Op::Land),
        2 => (pick.clone(), 0..=OUTPUT as u32).prop_map(|(pick, len)| Op::Commit(pick, len)),
        1 => pick.clone().prop_map(Op::EndLanding),
        3 => pick.clone().prop_map(Op::Complete),
        2 => pick.clone().prop_map(Op::Take),
        2 => pick.clone().prop_map(Op::EndTake),
        2 => pick.prop_map(Op::Release),
    ]
}

/// A submitted task as a naive bookkeeper sees it; gone means recycled.
#[derive(Clone, Debug, Default)]
struct Naive {
    fill: u8,
    leases: u32,
    landing: bool,
    landed: Option<u32>,
    done: bool,
    taken: bool,
    released: bool,
    gone: bool,
}

impl Naive {
    fn settle(&mut self) {
        let held = self.leases > 0 || self.landing || self.taken;
        self.gone |= self.done && self.released && !held;
    }
}

/// The slabs, everything borrowed from them, and the model, keyed by every id ever submitted.
struct Rig {
    set: Arc<SlabSet>,
    tasks: Vec<(TaskId, Naive)>,
    inputs: Vec<InputMut>,
    leases: Vec<(TaskId, ReadLease)>,
    landings: Vec<(TaskId, OutputMut)>,
    outputs: Vec<(TaskId, OutputRef)>,
}

fn pick<T>(from: &mut Vec<T>, at: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(at % from.len()))
}

impl Rig {
    fn task(&mut self, at: usize) -> Option<(TaskId, &mut Naive)> {
        let len = self.tasks.len();
        let (task, naive) = self.tasks.get_mut(at % len.max(1))?;
        Some((*task, naive))
    }

    fn update(&mut self, task: TaskId, change: impl FnOnce(&mut Naive)) {
        let (_, naive) = self.tasks.iter_mut().find(|(id, _)| *id == task).unwrap();
        change(naive);
        naive.settle();
    }

    fn apply(&mut self, op: Op) {
        let set = self.set.clone();
        match op {
            Op::Acquire(model) => self.acquire(model),
            Op::GiveUp(at) => drop(pick(&mut self.inputs, at)),
            Op::Submit(at, fill) => {
                let Some(mut input) = pick(&mut self.inputs, at) else { return };
                input.fill(fill);
                let task = input.submit();
                assert!(self.tasks.iter().all(|(id, _)| *id != task), "an id came twice");
                self.tasks.push((task, Naive { fill, ..Naive::default() }));
            }
            Op::Renew(at) => {
                let Some((task, naive)) = self.task(at) else { return };
                let busy = naive.leases > 0 || naive.landing || naive.landed.is_some();
                let (fill, open) = (naive.fill, !naive.done && !busy);
                let renewed = set.renew(task);
                assert_eq!(renewed.is_some(), open);
                let Some(renewed) = renewed else { return };
                // Under its old id the task is one that has come and gone.
                self.update(task, |naive| (naive.done, naive.released) = (true, true));
                assert!(self.tasks.iter().all(|(id, _)| *id != renewed), "an id came twice");
                self.tasks.push((renewed, Naive { fill, ..Naive::default() }));
            }
            Op::Read(at) => {
                let Some((task, naive)) = self.task(at) else { return };
                let lease = set.read(task, INPUT as u32);
                assert_eq!(lease.is_ok(), !naive.done);
                naive.leases += u32::from(lease.is_ok());
                self.leases.extend(lease.ok().map(|lease| (task, lease)));
            }
            Op::EndLease(at) => {
                let Some((task, _lease)) = pick(&mut self.leases, at) else { return };
                self.update(task, |naive| naive.leases -= 1);
            }
            Op::Land(at) => {
                let Some((task, naive)) = self.task(at) else { return };
                let landing = set.landing(task);
                let open = !naive.done && !naive.landing && naive.landed.is_none();
                assert_eq!(landing.is_some(), open);
                naive.landing |= open;
                self.landings.extend(landing.map(|landing| (task, landing)));
            }
            Op::Commit(at, len) => {
                let Some((task, mut landing)) = pick(&mut self.landings, at) else { return };
                let fill = task.0 as u8;
                landing.fill(fill);
                landing.commit(len);
                self.update(task, |naive| {
                    naive.landing = false;
                    naive.landed = (!naive.done).then_some(len);
                });
            }
            Op::EndLanding(at) => {
                let Some((task, _landing)) = pick(&mut self.landings, at) else { return };
                self.update(task, |naive| naive.landing = false);
            }
            Op::Complete(at) => {
                let Some((task, naive)) = self.task(at) else { return };
                assert_eq!(set.complete(task), !naive.done);
                naive.done = true;
            }
            Op::Take(at) => {
                let Some((task, naive)) = self.task(at) else { return };
                let there = naive.done && naive.landed.is_some();
                let output = set.output(task);
                assert_eq!(output.is_some(), there && !naive.taken && !naive.released);
                naive.taken |= output.is_some();
                self.outputs.extend(output.map(|output| (task, output)));
            }
            Op::EndTake(at) => {
                let Some((task, _output)) = pick(&mut self.outputs, at) else { return };
                self.update(task, |naive| (naive.taken, naive.released) = (false, true));
            }
            Op::Release(at) => {
                let Some((task, naive)) = self.task(at) else { return };
                set.release(task);
                naive.released |= naive.done;
                naive.settle();
            }
        }
    }

    fn acquire(&mut self, model: u32) {
        let slots = [2, 3].get(model as usize).copied();
        let base = if model == 0 { 0..2 } else { 2..5 };
        let live = self.tasks.iter().filter(|(id, n)| !n.gone && base.contains(&id.slot())).count();
        match self.set.acquire(ModelId(model)) {
            Ok(input) => self.inputs.push(input),
            Err(SlabError::UnknownModel) => assert_eq!(slots, None),
            Err(SlabError::Exhausted) => {
                assert!(slots.unwrap() <= live + self.inputs.len(), "a slot is free");
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn check(&self) {
        let live = self.tasks.iter().filter(|(_, naive)| !naive.gone).count();
        assert_eq!(self.set.in_use() as usize, live + self.inputs.len());
        assert_eq!(self.set.leases() as usize, self.leases.len());
        for (task, lease) in &self.leases {
            let (input, trailer) = lease.as_ref().split_at(INPUT);
            let fill = self.tasks.iter().find(|(id, _)| id == task).unwrap().1.fill;
            assert_eq!((input, trailer), (&[fill; INPUT][..], &task.0.to_le_bytes()[..]));
        }
        for (task, output) in &self.outputs {
            let len = self.tasks.iter().find(|(id, _)| id == task).unwrap().1.landed.unwrap();
            assert_eq!(&output[..], &vec![task.0 as u8; len as usize][..]);
        }
    }
}

proptest! {
    #[test]
    fn as_the_model(ops in prop::collection::vec(any_op(), 1..200)) {
        let set = slabs(&[spec(0, 2), spec(1, 3)], TaskId::GENERATIONS - 2);
        let (inputs, leases, landings, outputs) = (vec![], vec![], vec![], vec![]);
        let mut rig = Rig { set, tasks: vec![], inputs, leases, landings, outputs };
        for op in ops {
            rig.apply(op);
            rig.check();
        }
        // Let everything go: nothing may be left.
        let Rig { set, tasks, inputs, leases, landings, outputs } = rig;
        drop((inputs, leases, landings, outputs));
        for (task, _) in &tasks {
            set.complete(*task);
            set.release(*task);
        }
        prop_assert_eq!((set.in_use(), set.leases()), (0, 0));
    }
}
