//! The same client under real threads: one for its I/O, many of the application's.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use baton_topo::{Idle, Placement};
use baton_types::{CostHint, DropReason};

use super::rejoining::{NUMBER, submits};
use super::world::*;
use crate::session::{Asked, Task};
use crate::{
    Client, CompletionQueue, Deadline, InputError, ModelHandle, Outcome, SubmitReason, Ticket,
};

const TASKS_PER_THREAD: u32 = 150;
/// Every one of these is dropped instead of answered.
const DROP_EVERY: u32 = 7;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// The four ways to get an outcome.
fn outcome(way: u32, mut ticket: Ticket) -> Outcome {
    match way % 4 {
        0 => ticket.wait(),
        1 => block_on(ticket),
        2 => loop {
            if let Some(outcome) = ticket.poll() {
                break outcome;
            }
            thread::yield_now();
        },
        _ => loop {
            if let Some(outcome) = ticket.wait_timeout(Duration::from_micros(200)) {
                break outcome;
            }
        },
    }
}

/// Submits tasks that each carry their own number, and checks that each gets its own back.
fn application(way: u32, model: &ModelHandle) -> u32 {
    let mut dropped = 0;
    for count in 0..TASKS_PER_THREAD {
        let number = (way << 16 | count).to_le_bytes();
        let mut input = loop {
            match model.input() {
                Ok(input) => break input,
                Err(_) => thread::yield_now(),
            }
        };
        input[..4].copy_from_slice(&number);
        let ticket = input.submit(Deadline::within(Duration::from_secs(60))).unwrap();
        match outcome(way, ticket) {
            Outcome::Completed(reply) => assert_eq!(reply.bytes(), number),
            Outcome::Dropped(DropReason::Window, _) => dropped += 1,
            other => panic!("{other:?}"),
        }
    }
    dropped
}

/// Scheduler and backend: answers every task with the first bytes of its input, or drops it.
fn serve(world: &mut World) -> bool {
    world.now = world.clock.now();
    world.step();
    let heard: Vec<_> = world.threads.iter_mut().flat_map(Peer::take).collect();
    for heard in &heard {
        if let Heard::Submit { task, model, .. } = *heard {
            let (_, bytes) = world.pull(task);
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            if number % DROP_EVERY == 0 {
                world.end(model as usize % 2, task, 1, DropReason::Window.code());
            } else {
                world.answer(task, &bytes[..4]);
            }
        }
    }
    !heard.is_empty()
}

/// A client and its peers on threads of their own, until `done` says that it is over.
struct Running {
    client: Client,
    io_thread: thread::JoinHandle<()>,
    server: thread::JoinHandle<()>,
    done: Arc<AtomicBool>,
}

impl Running {
    /// `act` is what the scheduler does besides, in every pass.
    fn start(mut act: impl FnMut(&mut World) + Send + 'static) -> Self {
        let (mut world, client) =
            World::open_with(|config| config.member_timeout(Duration::from_secs(60)));
        let (mut io, clock) = (world.io.take().unwrap(), world.clock);
        let io_thread = thread::spawn(move || {
            let placement = Placement { name: "io".into(), core: None, idle: Idle::Park };
            baton_topo::run(&mut io, clock, &placement, &Arc::new(AtomicBool::new(false)));
        });
        let done = Arc::new(AtomicBool::new(false));
        let server = thread::spawn({
            let done = Arc::clone(&done);
            move || {
                while !done.load(Ordering::Acquire) {
                    act(&mut world);
                    if !serve(&mut world) {
                        thread::yield_now();
                    }
                }
            }
        });
        Self { client, io_thread, server, done }
    }

    fn end(self) {
        self.client.clone().leave().unwrap();
        self.io_thread.join().unwrap();
        self.done.store(true, Ordering::Release);
        self.server.join().unwrap();
        assert_eq!(self.client.slots_in_use(), 0);
    }
}

#[test]
fn many_threads_each_get_their_own_answers() {
    let running = Running::start(|_| {});
    let client = &running.client;
    let dropped: u32 = thread::scope(|scope| {
        let run = |way: u32| {
            let model = client.model(MODELS[way as usize % 2]).unwrap();
            scope.spawn(move || application(way, &model))
        };
        let threads: Vec<_> = (0..8).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });

    let counters = client.counters();
    assert_eq!(counters.submitted, u64::from(8 * TASKS_PER_THREAD));
    assert_eq!(counters.dropped, u64::from(dropped));
    assert_eq!(counters.completed + counters.dropped, counters.submitted);
    running.end();
}

/// Several threads put tasks into one queue, and two others take them out.
#[test]
fn every_outcome_comes_out_of_a_shared_queue_once() {
    const TAKERS: u64 = 2;
    let running = Running::start(|_| {});
    let client = &running.client;
    let queue = CompletionQueue::new(2 * SLOTS as usize).unwrap();
    let [submitted, taken] = [(); 2].map(|()| AtomicU64::new(0));
    let all = u64::from(4 * TASKS_PER_THREAD);
    thread::scope(|scope| {
        for way in 0..4 {
            let model = client.model(MODELS[way as usize % 2]).unwrap();
            let (queue, submitted) = (&queue, &submitted);
            scope.spawn(move || {
                for count in 0..TASKS_PER_THREAD {
                    let number = way << 16 | count;
                    let mut input = block_on(model.input_ready()).unwrap();
                    input[..4].copy_from_slice(&number.to_le_bytes());
                    let ticket = input.submit(Deadline::within(Duration::from_secs(60))).unwrap();
                    queue.add(ticket, number.into()).unwrap();
                    submitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..TAKERS {
            scope.spawn(|| {
                while taken.load(Ordering::Relaxed) < all {
                    // Another may take the last one: a wait has an end.
                    let Some(done) = queue.wait(Duration::from_millis(5)) else {
                        thread::yield_now();
                        continue;
                    };
                    taken.fetch_add(1, Ordering::Relaxed);
                    match done.outcome {
                        Outcome::Completed(reply) => {
                            assert_eq!(reply.bytes(), (done.tag as u32).to_le_bytes());
                        }
                        Outcome::Dropped(DropReason::Window, _) => {
                            assert_eq!(done.tag as u32 % DROP_EVERY, 0);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!((submitted.into_inner(), taken.into_inner()), (all, all));
    assert!(queue.is_empty());
    running.end();
}

/// The third model, which an operator adds and removes while tasks are under way.
#[derive(Default)]
struct Operator {
    passes: u32,
    id: Option<u32>,
}

impl Operator {
    fn act(&mut self, world: &mut World) {
        for heard in world.control.take() {
            // The client may have left meanwhile.
            if let Heard::Slab { first_slot, .. } = heard
                && world.control.conn.is_some()
            {
                world.slab_known(MEMBER, first_slot);
            }
        }
        self.passes += 1;
        if !self.passes.is_multiple_of(40) || world.control.conn.is_none() {
            return;
        }
        match self.id.take() {
            Some(id) => world.remove_model(id),
            None => {
                let id = 2 | self.passes << 16;
                world.add_model(model_desc(id), "gamma");
                self.id = Some(id);
            }
        }
    }
}

/// Submits tasks to a model that may be gone at any moment; how many there were.
fn application_of_a_changing_model(way: u32, client: &Client) -> u32 {
    let mut submitted = 0;
    while submitted < TASKS_PER_THREAD {
        let Ok(model) = client.model("gamma") else {
            thread::yield_now();
            continue;
        };
        let number = (way << 16 | submitted).to_le_bytes();
        let mut input = match model.input() {
            Ok(input) => input,
            Err(InputError::ModelRemoved { .. } | InputError::SlabExhausted { .. }) => continue,
            Err(other) => panic!("{other}"),
        };
        input[..4].copy_from_slice(&number);
        let ticket = match input.submit(Deadline::within(Duration::from_secs(60))) {
            Ok(ticket) => ticket,
            Err(refused) => {
                assert_eq!(refused.reason, SubmitReason::ModelRemoved);
                continue;
            }
        };
        submitted += 1;
        match outcome(way, ticket) {
            Outcome::Completed(reply) => assert_eq!(reply.bytes(), number),
            Outcome::Dropped(DropReason::Window | DropReason::ModelRemoved, _) => {}
            other => panic!("{other:?}"),
        }
    }
    submitted
}

#[test]
fn a_model_comes_and_goes_under_the_applications_threads() {
    let mut operator = Operator::default();
    let running = Running::start(move |world| operator.act(world));
    let client = &running.client;
    let submitted: u32 = thread::scope(|scope| {
        let run = |way: u32| scope.spawn(move || application_of_a_changing_model(way, client));
        let threads: Vec<_> = (0..6).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let counters = client.counters();
    assert_eq!(counters.submitted, u64::from(submitted));
    assert_eq!(counters.completed + counters.dropped, counters.submitted);
    assert_eq!((counters.unexpected, counters.duplicates), (0, 0));
    assert!(counters.models_removed > 1, "it came and went");
    running.end();
}

#[test]
fn handles_may_go_where_applications_want_them() {
    fn shared<T: Clone + Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Client>();
    shared::<ModelHandle>();
    sent::<crate::Input>();
    sent::<Ticket>();
    sent::<crate::Reply>();
}

#[test]
fn a_waker_is_replaced_and_called() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    let flags = [(); 2].map(|()| Arc::new(Flag::default()));
    for flag in &flags {
        let waker = Waker::from(Arc::clone(flag));
        let polled = Future::poll(pin!(&mut ticket), &mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(!flags[0].0.load(Ordering::Relaxed), "only the last waker counts");
    assert!(flags[1].0.load(Ordering::Relaxed));
    assert!(matches!(block_on(ticket), Outcome::Completed(_)));
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Its thread had the former number still, and stood still before it handed the task over.
#[test]
fn what_comes_under_the_former_number_is_submitted_under_the_new_one() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let id = alpha.model().acquire().unwrap().submit();
    world.lose_scheduler();
    world.take_back(NUMBER);
    let asked = Asked { cost: CostHint::default(), accuracy_min: 0 };
    let task = Task::new(id, alpha.model().place, (world.now, world.now + SLO), asked, 1);
    client.guard.session.hand_over(alpha.model(), task);
    world.steps(2);
    let heard = submits(&mut world, 0);
    assert!(
        matches!(heard[..], [(task, _)] if u32::from(task.frontend().0) == NUMBER),
        "{heard:?}"
    );
}
