//! The slots of a backend fetch their inputs through one port: a batch waits for those that are fetched before its own.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_core::{Nanos, Policy};
use baton_rdma::Transport;
use baton_rdma::wire::{ActionDone, ActionStatus, WireFetch};
use stage::{Member, Stage, Told, cluster, ms};

/// Of each plan that one of these backends has been sent: whose, the batch, the slot, and how long until it starts.
fn plans(stage: &mut Stage, backends: &mut [Member]) -> Vec<(usize, u64, u32, Nanos)> {
    let mut plans = Vec::new();
    for (at, backend) in backends.iter_mut().enumerate() {
        for told in stage.exchange(backend) {
            if let Told::Action { batch, gpu, exec_at, .. } = told {
                plans.push((at, batch, gpu, exec_at - stage.now));
            }
        }
    }
    plans
}

/// A task alone was executed, whose input took 2 ms to come.
fn measured(action: u64, gpu: u32, now: Nanos) -> ActionDone {
    ActionDone {
        action: action.into(),
        started_ns: (now - ms(5)).0.into(),
        finished_ns: now.0.into(),
        gpu: gpu.into(),
        rows: 1.into(),
        status: ActionStatus::Executed as u8,
        variant: 0,
        fetch: WireFetch::new(ms(2), now - ms(5)),
    }
}

/// When two tasks that come at once start, on idle slots of these backends.
fn starts(slots: &[u32]) -> [Nanos; 2] {
    let mut cluster = cluster(Policy::Eager, 1);
    cluster.network.data_per_task = ms(2);
    let mut stage = Stage::new(&cluster);
    let mut frontend = stage.frontend();
    let joins = (0..).zip(slots).map(|(at, &slots)| stage.backend(&format!("b{at}"), 0, slots));
    let mut backends: Vec<Member> = joins.collect();
    let mut plan = |stage: &mut Stage, backends: &mut [Member], slot| {
        frontend.submit(0, frontend.task(slot, 0), stage.now + ms(30));
        stage.exchange(&mut frontend);
        let plans = plans(stage, backends);
        assert_eq!(plans.len(), 1, "an idle slot takes the task");
        plans[0]
    };
    // Ports count once an input has been measured.
    let (at, batch, gpu, _) = plan(&mut stage, &mut backends, 0);
    stage.advance(ms(7));
    let backend = &mut backends[at];
    backend.transport.send(backend.threads[0], &measured(batch, gpu, stage.now), &[]).unwrap();
    stage.exchange(backend);
    stage.advance(ms(7));
    [1, 2].map(|slot| plan(&mut stage, &mut backends, slot).3)
}

#[test]
fn slots_of_one_backend_fetch_one_batch_after_the_other() {
    let [first, second] = starts(&[2]);
    assert!((ms(2)..ms(3)).contains(&first), "{first:?}");
    assert!((first + ms(2)..first + ms(3)).contains(&second), "{second:?} behind {first:?}");
    let [one, other] = starts(&[1, 1]);
    assert_eq!(one, other, "two backends have two ports");
}
