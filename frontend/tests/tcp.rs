//! The public client over real sockets, against a scripted scheduler and backend in one thread.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use baton_client::{
    Client, ClientConfig, ConnectError, Deadline, FailReason, Loss, MembershipError, Outcome,
    SubmitReason,
};
use baton_rdma::wire::{
    CatalogChanged, CatalogEnd, Hello, JoinAck, LeaveAck, Message, ModelDesc, Pong, Role,
    TaskResult, ThreadDesc, WireAddr,
};
use baton_rdma::{
    BatchBuffer, ConnId, Event, Events, Identity, Read, ReadStatus, TcpConfig, TcpTransport,
    Transport,
};
use baton_topo::{Clock, wait_readable};
use baton_types::Nanos;

const TOKEN: u64 = 42;
const ROW: u32 = 4096;
const OUTPUT: u32 = 8;
const SLOTS: u32 = 16;

fn bind(role: Role) -> TcpTransport {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    TcpTransport::bind(listen, Identity { role, member: 0 }, TcpConfig::default()).unwrap()
}

/// One model, `sum`: answers with the sum of the input's bytes.
struct Server {
    clock: Clock,
    control: TcpTransport,
    thread: TcpTransport,
    backend: TcpTransport,
    frontend: Option<ConnId>,
    batch: Arc<BatchBuffer>,
    /// Rows of `batch` that are free.
    rows: Vec<u32>,
    /// Submitted tasks without a row.
    waiting: Vec<u64>,
}

impl Server {
    fn start() -> (SocketAddr, Arc<AtomicBool>, JoinHandle<()>) {
        let mut server = Self {
            clock: Clock::start(),
            control: bind(Role::Control),
            thread: bind(Role::ModelThread),
            backend: bind(Role::Backend),
            frontend: None,
            batch: BatchBuffer::new((SLOTS * ROW) as usize).unwrap(),
            rows: (0..SLOTS).collect(),
            waiting: Vec::new(),
        };
        let (addr, stop) = (server.control.local_addr(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                server.pass();
                thread::yield_now();
            }
        };
        (addr, stop, thread::spawn(run))
    }

    fn pass(&mut self) {
        let (now, mut events) = (self.clock.now(), Events::new());
        self.control.poll(now, &mut events);
        events.drain().for_each(|event| self.on_control(&event));
        self.thread.poll(now, &mut events);
        for event in events.drain() {
            if let Event::Message { message: Message::Submit(submit), .. } = event {
                self.waiting.push(submit.task.get());
            }
        }
        self.pull();
        self.backend.poll(now, &mut events);
        events.drain().for_each(|event| self.on_backend(event));
        self.control.flush();
        self.backend.flush();
    }

    fn on_control(&mut self, event: &Event<'_>) {
        match *event {
            Event::Opened { conn, .. } => self.announce(conn),
            Event::Message { conn, message: Message::Ping(ping) } => {
                let scheduler_ns = self.clock.now().0.into();
                self.control
                    .send(conn, &Pong { sent_ns: ping.sent_ns, scheduler_ns }, &[])
                    .unwrap();
            }
            Event::Message { conn, message: Message::JoinFrontend(join) } => {
                let ack = JoinAck { member: 3.into(), first_gpu: 0.into(), token: TOKEN.into() };
                self.control.send(conn, &ack, &[]).unwrap();
                let addr = join.addr.resolve("127.0.0.1".parse().unwrap());
                self.backend.connect(addr, Hello::new(Role::Backend, 0, TOKEN)).unwrap();
            }
            Event::Message { conn, message: Message::CatalogChange(change, text) } => {
                let done = CatalogChanged { status: 0, reserved: [0; 3] };
                let text = format!("asked for {}: {text}", change.kind);
                self.control.send(conn, &done, text.as_bytes()).unwrap();
            }
            Event::Message { conn, message: Message::Leave(_) } => {
                self.control.send(conn, &LeaveAck { reserved: 0.into() }, &[]).unwrap();
            }
            _ => {}
        }
    }

    fn announce(&mut self, conn: ConnId) {
        let addr = WireAddr::new(self.thread.local_addr());
        self.control.send(conn, &ThreadDesc { thread: 0.into(), addr }, &[]).unwrap();
        let model = ModelDesc {
            model: 0.into(),
            thread: 0.into(),
            subcluster: 0.into(),
            batch_max: 8.into(),
            input_bytes: ROW.into(),
            output_bytes: OUTPUT.into(),
            slo_ns: 60_000_000_000.into(),
        };
        self.control.send(conn, &model, b"sum").unwrap();
        self.control.send(conn, &CatalogEnd { scheduler_epoch: 1.into() }, &[]).unwrap();
    }

    fn pull(&mut self) {
        let Some(conn) = self.frontend else { return };
        let mut reads = Vec::new();
        while let (false, Some(number)) = (self.waiting.is_empty(), self.rows.last().copied()) {
            let Some(row) = self.batch.lend(number, ROW) else { break };
            self.rows.pop();
            let task = baton_types::TaskId(self.waiting.remove(0));
            reads.push(Read { conn, task, row, tag: u64::from(number) });
        }
        self.backend.post_reads(&mut reads);
    }

    fn on_backend(&mut self, event: Event<'_>) {
        match event {
            Event::Opened { conn, .. } => self.frontend = Some(conn),
            Event::Read(done) => {
                assert_eq!(done.status, ReadStatus::Done);
                let sum: u64 = done.row.iter().map(|&byte| u64::from(byte)).sum();
                self.rows.push(done.tag as u32);
                let now = self.clock.now().0;
                let result = TaskResult {
                    task: done.task.0.into(),
                    started_ns: now.into(),
                    finished_ns: now.into(),
                    batch_size: 1.into(),
                    variant: 0.into(),
                    gpu: 0.into(),
                };
                let conn = self.frontend.expect("a READ was posted to it");
                self.backend.reply(conn, &result, &sum.to_le_bytes()).unwrap();
            }
            _ => {}
        }
    }
}

fn config(addr: SocketAddr) -> ClientConfig {
    // Generous: these machines have two cores, and a test is no place for a second's patience.
    let patience = Duration::from_secs(30);
    ClientConfig::new(addr)
        .slots_per_model(SLOTS)
        .member_timeout(patience)
        .connect_timeout(patience)
}

#[test]
fn answers_come_back_over_sockets() {
    let (addr, stop, server) = Server::start();
    let client = Client::connect(config(addr)).unwrap();
    let model = client.model("sum").unwrap();
    thread::scope(|scope| {
        for seed in 0..4u8 {
            let model = &model;
            scope.spawn(move || {
                for count in 0..50u8 {
                    let mut input = model.input().unwrap();
                    input.fill(seed ^ count);
                    let expected = u64::from(ROW) * u64::from(seed ^ count);
                    let outcome = input.submit(Deadline::Slo).unwrap().wait();
                    let Outcome::Completed(reply) = outcome else { panic!("{outcome:?}") };
                    assert_eq!(reply.bytes(), expected.to_le_bytes());
                    assert!(!reply.late());
                }
            });
        }
    });
    assert_eq!(client.slots_in_use(), 0);
    drop(model);
    client.clone().leave().unwrap();
    let counters = client.counters();
    assert_eq!((counters.submitted, counters.completed), (200, 200));
    assert_eq!(counters.transport.reads_served, 200);
    assert!(counters.sent_by_caller > 0, "between two tasks the I/O thread sleeps");
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

#[test]
fn a_scheduler_that_dies_leaves_no_ticket_waiting() {
    let (addr, stop, server) = Server::start();
    let client = Client::connect(config(addr).lease_grace(Duration::from_millis(50))).unwrap();
    let model = client.model("sum").unwrap();
    stop.store(true, Ordering::Release);
    server.join().unwrap();

    let deadline = Deadline::within(Duration::from_millis(50));
    let mut input = model.input().unwrap();
    let error = loop {
        match input.submit(deadline) {
            // Accepted before the news came, and so it has an outcome.
            Ok(ticket) => match ticket.wait() {
                Outcome::Failed(FailReason::SchedulerLost, _) => input = model.input().unwrap(),
                other => panic!("{other:?}"),
            },
            Err(error) => break error,
        }
    };
    assert_eq!(error.reason, SubmitReason::SchedulerLost);
    assert!(matches!(client.loss(), Some(Loss::Scheduler(_))));
}

#[test]
fn one_thread_submits_drives_and_takes_outcomes() {
    let (addr, stop, server) = Server::start();
    let (client, mut driver) = Client::driven(config(addr)).unwrap();
    let model = client.model("sum").unwrap();
    let submit = |byte: u8| {
        let mut input = model.input().unwrap();
        input.fill(byte);
        input.submit(Deadline::within(Duration::from_secs(60))).unwrap()
    };
    let mut tickets: Vec<_> = (0..SLOTS as u8).map(|byte| (byte, submit(byte))).collect();
    let mut answered = 0;
    while answered < 100 {
        driver.wait(None);
        driver.poll();
        for (byte, ticket) in &mut tickets {
            let Some(outcome) = ticket.poll() else { continue };
            let Outcome::Completed(reply) = outcome else { panic!("{outcome:?}") };
            assert_eq!(reply.bytes(), (u64::from(ROW) * u64::from(*byte)).to_le_bytes());
            drop(reply);
            (answered, *ticket) = (answered + 1, submit(*byte));
        }
    }
    drop((tickets, model));
    let counters = client.clone();
    driver.leave(client).unwrap();
    assert_eq!(counters.counters().sent_by_caller, 0, "the driver sends");
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_drives_is_woken_once_for_all_that_comes_until_its_next_poll() {
    let (addr, stop, server) = Server::start();
    let (client, mut driver) = Client::driven(config(addr)).unwrap();
    let model = client.model("sum").unwrap();
    let submit = || model.input().unwrap().submit(Deadline::Slo).unwrap();
    let counted = Arc::new(Woken::default());
    let (woken, waker) = (|| counted.0.swap(0, Ordering::Relaxed), Waker::from(counted.clone()));
    let context = Context::from_waker(&waker);
    while driver.poll_task(&context).is_zero() {}
    let mut tickets = vec![submit(), submit()];
    assert_eq!(woken(), 1);
    while !tickets.is_empty() {
        let sleep = driver.poll_task(&context);
        wait_readable(&driver, Some(Nanos(sleep.as_nanos() as u64)));
        tickets.retain_mut(|ticket| ticket.poll().is_none());
    }
    // The thread is at something long.
    let mut ticket = submit();
    assert!(driver.poll_task(&context).is_zero() && woken() == 1);
    while ticket.poll().is_none() {
        driver.stand_in();
    }
    assert_eq!(woken(), 1, "there may be more to do");
    // A loop that waits for the descriptor is no task.
    driver.poll_task(&context);
    driver.prepare_wait();
    drop(submit());
    assert_eq!(woken(), 0);
    drop((ticket, model));
    driver.leave(client).unwrap();
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

#[test]
fn other_threads_submit_to_a_driven_client_and_wait() {
    let (addr, stop, server) = Server::start();
    let (client, mut driver) = Client::driven(config(addr)).unwrap();
    let model = client.model("sum").unwrap();
    let others: Vec<_> = (1..=3_u8)
        .map(|byte| {
            let model = model.clone();
            thread::spawn(move || {
                for _ in 0..20 {
                    let input = model.input_from(&[byte; ROW as usize]).unwrap();
                    let outcome = input.submit(Deadline::Slo).unwrap().wait();
                    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
                }
            })
        })
        .collect();
    while !others.iter().all(JoinHandle::is_finished) {
        driver.wait(Some(Duration::from_millis(5)));
        driver.poll();
    }
    others.into_iter().for_each(|other| other.join().unwrap());
    drop(model);
    driver.leave(client).unwrap();
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

#[test]
fn a_driver_that_is_dropped_leaves_no_ticket_waiting() {
    let (addr, stop, server) = Server::start();
    let (client, driver) = Client::driven(config(addr)).unwrap();
    let model = client.model("sum").unwrap();
    let ticket = model.input().unwrap().submit(Deadline::Slo).unwrap();
    drop(driver);
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::SchedulerLost, _)));
    assert_eq!(client.loss(), Some(Loss::IoEnded));
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

/// Drives a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (parker, unparker) = parking::pair();
    let (waker, mut future) = (Waker::from(unparker), pin!(future));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        parker.park();
    }
}

#[test]
fn a_program_that_awaits_never_blocks() {
    let (addr, stop, server) = Server::start();
    let config = config(addr).slots_per_model(1);
    let sums = block_on(async {
        let client = Client::connect_async(config).await.unwrap();
        let model = client.model("sum").unwrap();
        let mut sums = Vec::new();
        for byte in 1..=3_u8 {
            // The slot is the former task's, until its answer is read.
            let mut input = model.input_ready().await.unwrap();
            input.fill(byte);
            let reply = input.submit(Deadline::within(Duration::from_secs(60))).unwrap().await;
            let reply = reply.into_result().unwrap();
            sums.push(u64::from_le_bytes(reply.bytes().try_into().unwrap()));
        }
        client.leave_async().await.unwrap();
        sums
    });
    assert_eq!(sums, [1, 2, 3].map(|byte| byte * u64::from(ROW)));
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

#[test]
fn joining_asynchronously_ends_with_the_same_errors() {
    let unused = bind(Role::Control).local_addr();
    let patience = Duration::from_millis(200);
    let joining = Client::connect_async(config(unused).connect_timeout(patience));
    let error = block_on(joining).unwrap_err();
    assert!(matches!(error, ConnectError::Membership(MembershipError::TimedOut { .. })), "{error}");
}

#[test]
fn an_address_without_a_scheduler_is_an_error_that_says_so() {
    let unused = bind(Role::Control).local_addr();
    let patience = Duration::from_millis(200);
    let error = Client::connect(config(unused).connect_timeout(patience)).unwrap_err();
    assert!(
        matches!(error, ConnectError::Membership(MembershipError::TimedOut { .. })),
        "{error:?}"
    );
    assert!(error.to_string().contains(&format!("the scheduler at {unused}")), "{error}");
}

#[test]
fn a_driver_with_nothing_to_do_blocks() {
    let (addr, stop, server) = Server::start();
    let (client, mut driver) = Client::driven(config(addr)).unwrap();
    let mut may_wait = || {
        while driver.poll() > 0 {}
        driver.prepare_wait() > Duration::ZERO
    };
    // Now and then a ping is due.
    assert!((0..100).filter(|_| may_wait()).count() > 50);
    let clock = Clock::start();
    let mut blocks = || {
        let began = clock.now();
        driver.wait(Some(Duration::from_millis(5)));
        clock.now() - began > Nanos::from_millis(2)
    };
    assert!((0..100).any(|_| blocks()));
    driver.leave(client).unwrap();
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}

/// An operator's call blocks until the answer is there, and says that it waits once a second at most.
#[cfg(feature = "operator")]
#[test]
fn an_operator_is_given_the_schedulers_answer() {
    let (addr, stop, server) = Server::start();
    let scheduler = baton_client::SchedulerLocator::from(addr);
    let mut operator =
        baton_client::Operator::connect(&scheduler, None, Duration::from_secs(30)).unwrap();
    assert_eq!(operator.models()[0].name, "sum");
    let mut waits = 0;
    assert_eq!(operator.add("a table", |_| ()).unwrap(), "asked for 1: a table");
    assert_eq!(operator.set("keys", |_| ()).unwrap(), "asked for 2: keys");
    let answer = operator.remove("sum", |waited| {
        waits += 1;
        assert!(waited >= Duration::from_secs(waits), "{waited:?}");
    });
    assert_eq!(answer.unwrap(), "asked for 3: sum");
    stop.store(true, Ordering::Release);
    server.join().unwrap();
}
