//! Which agents are polled when: as threads would, in an order that the seed decides.

use baton_core::Nanos;
use baton_scheduler::Assembly;

use crate::gpu::SimGpu;
use crate::process::{Line, NextPass, Pass, SchedulerProcess};
use crate::world::World;

/// Which agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AgentName {
    Control,
    Rank,
    Model(usize),
    Backend(usize),
    Frontend(usize),
    Operator(usize),
}

impl World {
    pub(crate) fn gather_due(&mut self) {
        let Self { now, due, scheduler, backends, frontends, operators, .. } = self;
        let mut note = |line: &mut Line, sooner: Option<Nanos>, name| {
            if line.is_due(*now, sooner) {
                due.push(name);
            }
        };
        if let Some(process) = scheduler {
            note(&mut process.control_line, None, AgentName::Control);
            note(&mut process.rank_line, None, AgentName::Rank);
            let threads = process.thread_lines.iter_mut().enumerate();
            threads.for_each(|(at, line)| note(line, None, AgentName::Model(at)));
        }
        for (at, process) in backends.iter_mut().enumerate() {
            let Some(process) = process else { continue };
            if process.gpus.iter().any(SimGpu::rings) {
                process.line.wake(*now);
            }
            let ends = process.gpus.iter().filter_map(SimGpu::ends_at).min();
            note(&mut process.line, ends, AgentName::Backend(at));
        }
        for (at, process) in frontends.iter_mut().enumerate() {
            let Some(process) = process else { continue };
            note(&mut process.line, None, AgentName::Frontend(at));
        }
        for (at, process) in operators.iter_mut().enumerate().filter(|(_, o)| !o.is_over) {
            note(&mut process.line, None, AgentName::Operator(at));
        }
    }

    /// Polls an agent. One that finds work although nothing asked for the pass has no timer for that work. Only
    /// handshakes need none: a transport looks at them whenever it is polled, which every thread is often enough.
    pub(crate) fn poll(&mut self, name: AgentName) {
        let closings = self.network.watch(|watch| watch.closings);
        let overslept = self.pass(name).is_some_and(|pass| pass.overslept);
        if overslept && self.network.watch(|watch| watch.closings) == closings {
            self.fail(format!("{name:?} had work to do, and neither a timer nor a wake-up for it"));
        }
    }

    fn pass(&mut self, name: AgentName) -> Option<Pass> {
        let (now, next) = (self.now, NextPass::draw(&mut self.rng));
        match name {
            AgentName::Control | AgentName::Rank | AgentName::Model(_) => {
                let process = self.scheduler.as_mut()?;
                let clock = process.clock;
                let Assembly { control, rank, model_threads, .. } = &mut process.assembly;
                let pass = match name {
                    AgentName::Control => {
                        let pass = process.control_line.poll(control, now, next, clock);
                        let counters = &process.assembly.counters().control_thread;
                        if counters.rules_changed.get() > 0 {
                            self.network.let_others_go_first();
                        }
                        pass
                    }
                    AgentName::Rank => process.rank_line.poll(rank, now, next, clock),
                    AgentName::Model(at) => {
                        process.thread_lines[at].poll(&mut model_threads[at], now, next, clock)
                    }
                    AgentName::Backend(_) | AgentName::Frontend(_) | AgentName::Operator(_) => {
                        unreachable!()
                    }
                };
                if pass.work > 0 && name != AgentName::Rank {
                    process.rank_line.wake(now + next.with_work);
                }
                Some(pass)
            }
            AgentName::Backend(at) => {
                let process = self.backends[at].as_mut()?;
                Some(process.line.poll(&mut process.worker, now, next, process.clock))
            }
            AgentName::Frontend(at) => {
                let process = self.frontends[at].as_mut()?;
                let pass = process.line.poll(&mut process.io, now, next, process.clock);
                process.news |= pass.work > 0;
                process.take_client();
                process.note_life(self.ledger.borrow().schedulers.len());
                Some(pass)
            }
            AgentName::Operator(at) => {
                let process = self.operators.get_mut(at)?;
                let pass = process.line.poll(&mut process.io, now, next, process.clock);
                self.hear_operator(at);
                Some(pass)
            }
        }
    }

    pub(crate) fn next_moment(&self) -> Nanos {
        let scheduler = self.scheduler.iter().flat_map(SchedulerProcess::lines);
        let backends = self.backends.iter().flatten().map(|b| {
            let ends = b.gpus.iter().filter_map(SimGpu::ends_at).min();
            b.line.next(ends)
        });
        let frontends = self.frontends.iter().flatten().map(|f| f.line.next(None));
        let lines = scheduler.map(|line| line.next(None)).chain(backends).chain(frontends);
        let operators = self.operators.iter().filter(|operator| !operator.is_over);
        let lines = lines.chain(operators.map(|operator| operator.line.next(None)));
        let attackers = self.attackers.iter().map(|attacker| attacker.next);
        lines.chain(attackers).chain(self.network.next_moment()).min().unwrap_or(Nanos::MAX)
    }
}
