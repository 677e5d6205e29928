//! Joining, staying and leaving, stepped by hand.

use baton_backend::{BackendError, CatalogueError, MembershipError, Stage};
use baton_rdma::wire::{LeaveAck, PeerUp, ReadyAck, RefuseCode, Role, WireAddr};
use baton_rdma::{TcpConfig, Transport};
use baton_topo::{Agent, BATCH_SLOTS, PARK_MAX, SLEEP_MAX};
use baton_types::Nanos;

use crate::party::{Party, Said};
use crate::world::{ActionSpec, BATCH_MAX, FRONTEND_TOKEN, World};

#[test]
fn a_backend_joins_with_its_models_and_is_ready_once_its_clock_is_set() {
    let world = World::ready();
    let heard: Vec<&Said> =
        world.control.heard.iter().filter(|said| !matches!(said, Said::Opened(_))).collect();
    let profiles = [
        &Said::Profile { model: 1, table: vec![7, 7, 7, 7] },
        &Said::Profile { model: 3, table: vec![] },
    ];
    assert_eq!(heard[..2], profiles, "the measured table, and nothing for the emulated model");
    let join = Said::Join { subcluster: 8, gpus: 1, name: "emulated-a".into() };
    assert_eq!(heard[2], &join);
    assert_eq!(heard[3..], [&Said::Ready]);
    let Some(Said::Opened(peer)) = world.thread.heard.first() else {
        panic!("the ModelThread was not reached")
    };
    assert_eq!((peer.role, peer.member, peer.token), (Role::Backend, 5, 77));
}

#[test]
fn a_backend_serves_once_the_scheduler_has_confirmed_it_and_in_each_life_anew() {
    let mut world = World::ready();
    assert_eq!((world.stage(), world.worker.serves()), (Stage::Ready, false));
    world.control.tell(&ReadyAck {}, &[]);
    world.settle(&mut []);
    assert!(world.worker.serves());
    world.restart_scheduler();
    world.until("it has let go", |w| w.stage() == Stage::Away);
    world.pass(Nanos::from_millis(50));
    world.let_in();
    assert_eq!((world.stage(), world.worker.serves()), (Stage::Ready, false));
}

#[test]
fn a_scheduler_that_is_not_up_yet_is_waited_for_but_not_for_ever() {
    let mut world = World::new(1, TcpConfig::default());
    let gone = world.network.endpoint(baton_rdma::Identity { role: Role::Control, member: 0 });
    world.control = Party::new(gone);
    for _ in 0..30 {
        world.pass(Nanos::from_millis(200));
        world.step();
    }
    let Some(Err(error)) = world.worker.result() else { panic!("it still tries") };
    assert!(matches!(error, BackendError::Membership(MembershipError::TimedOut { .. })), "{error}");
}

#[test]
fn a_catalogue_that_does_not_fit_our_file_ends_the_backend_with_the_difference() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    world.send_catalog("resnet50", 999);
    world.until("it ends", |w| w.worker.finished());
    let expected = CatalogueError::Mismatch {
        model: "resnet50".into(),
        what: "input_bytes",
        theirs: 999,
        ours: 64,
    };
    assert_eq!(world.worker.result(), Some(&Err(BackendError::Catalogue(expected))));
}

#[test]
fn a_model_that_our_file_lacks_is_named() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    world.send_catalog("bert", 64);
    world.until("it ends", |w| w.worker.finished());
    let expected = CatalogueError::UnknownModel("bert".into());
    assert_eq!(world.worker.result(), Some(&Err(BackendError::Catalogue(expected))));
}

#[test]
fn a_refused_join_ends_the_backend_with_the_schedulers_words() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    let conn = world.control.conn.unwrap();
    world.control.transport.close(conn, RefuseCode::Limit, "no GPU ids left");
    world.until("it ends", |w| w.worker.finished());
    let Some(Err(BackendError::Membership(error))) = world.worker.result() else { panic!() };
    assert_eq!(error.code(), Some(RefuseCode::Limit));
    assert!(error.to_string().contains("no GPU ids left"), "{error}");
}

#[test]
fn a_scheduler_that_never_answers_the_join_is_given_up() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    world.send_catalog("resnet50", 64);
    for _ in 0..60 {
        world.pass(Nanos::from_millis(100));
        world.steps(2);
    }
    let Some(Err(BackendError::Membership(error))) = world.worker.result() else { panic!() };
    assert!(matches!(error, MembershipError::Timeout { timeout_ms: 5_000, .. }), "{error}");
    assert!(error.to_string().contains("admit"), "{error}");
}

#[test]
fn a_message_out_of_turn_ends_the_backend() {
    let mut world = World::ready();
    world.acknowledge_join();
    world.until("it ends", |w| w.worker.finished());
    assert!(matches!(world.worker.result(), Some(Err(BackendError::Protocol(_)))));
}

#[test]
fn a_slab_that_comes_before_the_join_is_answered_ends_the_backend() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it has connected", |w| w.control.conn.is_some());
    let desc = crate::world::slabs(1).descs()[0];
    world.control.tell(&desc, &[]);
    world.until("it ends", |w| w.worker.result().is_some());
}

#[test]
fn a_frontend_that_is_announced_before_the_join_is_answered_ends_the_backend() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it has connected", |w| w.control.conn.is_some());
    let up = PeerUp {
        frontend: 2.into(),
        reserved: 0.into(),
        token: 1.into(),
        addr: WireAddr::new(world.thread.transport.local_addr()),
        slabs: 0.into(),
        reserved2: 0.into(),
    };
    world.control.tell(&up, &[]);
    world.until("it ends", |w| w.worker.result().is_some());
}

#[test]
fn a_frontend_announced_without_its_slabs_ends_the_backend() {
    let mut world = World::ready();
    let side = world.add_frontend(1);
    let up = PeerUp {
        frontend: 2.into(),
        reserved: 0.into(),
        token: 1.into(),
        addr: WireAddr::new(side.party.transport.local_addr()),
        slabs: 1.into(),
        reserved2: 0.into(),
    };
    world.control.tell(&up, &[]);
    world.until("it ends", |w| w.worker.finished());
    assert!(matches!(world.worker.result(), Some(Err(BackendError::Protocol(_)))));
}

#[test]
fn pings_go_out_every_100_ms_and_silence_means_the_scheduler_is_lost() {
    let mut world = World::ready();
    world.answers_pings = false;
    world.control.heard.clear();
    for _ in 0..9 {
        world.pass(Nanos::from_millis(100));
        world.step();
    }
    let pings = world.control.heard.iter().filter(|said| matches!(said, Said::Ping(_))).count();
    assert!((8..=9).contains(&pings), "{pings} pings in 0.9 s");
    assert_eq!(world.counter("schedulers_lost"), 0);
    for _ in 0..2 {
        world.pass(Nanos::from_millis(100));
        world.step();
    }
    world.until("it notices", |w| w.counter("schedulers_lost") == 1);
}

#[test]
fn a_backend_without_batches_sleeps_longer_until_it_has_one() {
    let pass = |world: &mut World| {
        for _ in 0..65 {
            world.pass(Nanos::from_millis(100));
            world.steps(3);
        }
    };
    let mut world = World::ready();
    assert_eq!(world.worker.sleep_max(), PARK_MAX);
    pass(&mut world);
    assert_eq!(world.worker.sleep_max(), SLEEP_MAX);
    let mut frontend = world.connected_frontend(1);
    let task = frontend.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut frontend]);
    assert_eq!(world.worker.sleep_max(), PARK_MAX);
    pass(&mut world);
    assert_eq!(world.worker.sleep_max(), PARK_MAX, "it still executes");
}

/// The scheduler may have stood still with it, and be back later.
#[test]
fn a_backend_that_stood_still_does_not_take_that_for_the_schedulers_silence() {
    let mut world = World::ready();
    world.answers_pings = false;
    world.pass(Nanos::from_millis(3_000));
    for _ in 0..8 {
        world.step();
        world.pass(Nanos::from_millis(100));
    }
    world.answers_pings = true;
    for _ in 0..20 {
        world.step();
        world.pass(Nanos::from_millis(100));
    }
    assert_eq!(world.counter("schedulers_lost"), 0);
}

#[test]
fn frontends_are_greeted_with_the_token_the_scheduler_gave_for_them() {
    let mut world = World::ready();
    let frontend = world.connected_frontend(2);
    let Some(Said::Opened(peer)) = frontend.party.heard.first() else { panic!("not opened") };
    assert_eq!((peer.role, peer.member, peer.token), (Role::Backend, 5, FRONTEND_TOKEN));
}

#[test]
fn a_connection_to_a_living_frontend_that_breaks_is_opened_anew() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    let conn = frontend.party.conn.take().unwrap();
    frontend.party.transport.close(conn, RefuseCode::Limit, "a hiccup");
    world.settle(&mut [&mut frontend]);
    assert!(frontend.party.conn.is_none());
    world.pass(Nanos::from_millis(50));
    world.settle(&mut [&mut frontend]);
    let conn = frontend.party.conn.take().expect("not more often than every 50 ms");
    world.pass(Nanos::from_millis(50));
    frontend.party.transport.close(conn, RefuseCode::Limit, "a hiccup");
    world.settle(&mut [&mut frontend]);
    assert!(frontend.party.conn.is_some(), "one that stood for a while is opened at once");
    assert_eq!(world.counter("frontends_disconnected"), 2);
}

#[test]
fn a_frontend_that_is_gone_is_not_called_again() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    world.peer_down(frontend.id);
    world.settle(&mut [&mut frontend]);
    assert!(matches!(frontend.party.take().as_slice(), [Said::Closed(_)]));
    frontend.party.conn = None;
    world.pass(Nanos::from_millis(200));
    world.settle(&mut [&mut frontend]);
    assert!(frontend.party.conn.is_none());
}

/// One without work says that its pings come less often from then on.
#[test]
fn a_backend_of_which_one_slot_executes_has_work() {
    let mut world = World::ready_with(2, TcpConfig::default());
    let mut a = world.connected_frontend(1);
    world.infer(&ActionSpec::default(), &[a.submit(1)]);
    world.settle(&mut [&mut a]);
    let mut says_so = |world: &mut World| {
        for _ in 0..60 {
            world.pass(Nanos::from_millis(100));
            world.settle(&mut [&mut a]);
        }
        let mut heard = std::mem::take(&mut world.control.heard).into_iter();
        heard.any(|said| matches!(said, Said::Other(text) if text.starts_with("Pace")))
    };
    assert!(!says_so(&mut world));
    world.hands[0].finish(world.now, world.now);
    assert!(says_so(&mut world));
}

#[test]
fn leaving_finishes_what_was_planned_and_then_ends_without_error() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    let (first, second) = (frontend.submit(1), frontend.submit(2));
    world.infer(&ActionSpec::default(), &[first]);
    world.settle(&mut [&mut frontend]);
    world.worker.leave(world.now);
    // Planned before the scheduler heard of it.
    world.infer(&ActionSpec::default(), &[second]);
    for _ in 0..2 {
        world.settle(&mut [&mut frontend]);
        world.hands[0].finish(world.now, world.now);
    }
    world.settle(&mut [&mut frontend]);
    assert!(world.control.take().contains(&Said::Leave));
    assert_eq!(world.reports(), [(1, 1, 0), (2, 1, 0)]);
    assert_eq!(world.stage(), Stage::Leaving);
    world.control.tell(&LeaveAck { reserved: 0.into() }, &[]);
    world.until("it ends", |w| w.worker.finished());
    assert_eq!(world.worker.result(), Some(&Ok(())));
    assert!(frontend.answer(first).is_some() && frontend.answer(second).is_some());
}

#[test]
fn a_backend_told_to_leave_before_it_joined_just_ends() {
    let mut world = World::new(1, TcpConfig::default());
    world.steps(2);
    world.worker.leave(world.now);
    world.until("it ends", |w| w.worker.finished());
    assert_eq!(world.worker.result(), Some(&Ok(())));
}

#[test]
fn a_dead_executor_ends_the_backend() {
    let mut world = World::ready();
    world.hands[0].die();
    world.until("it ends", |w| w.worker.finished());
    assert_eq!(world.worker.result(), Some(&Err(BackendError::ExecutorDied(0))));
}

/// Nor does it execute what it is given while another GPU slot still does.
#[test]
fn a_backend_with_a_dead_executor_asks_for_no_more() {
    let mut world = World::ready_with(2, TcpConfig::default());
    let mut frontend = world.connected_frontend(1);
    let task = frontend.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut frontend]);
    assert!(world.hands[0].batch().is_some(), "it executes");
    world.hands[1].die();
    world.settle(&mut [&mut frontend]);
    assert!(world.control.take().contains(&Said::Leave));
    world.control.tell(&LeaveAck { reserved: 0.into() }, &[]);
    world.settle(&mut [&mut frontend]);
    assert!(!world.worker.finished(), "a batch executes");
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut frontend]);
    assert_eq!(world.worker.result(), Some(&Err(BackendError::ExecutorDied(1))));
    assert!(frontend.answer(task).is_some());
}

#[test]
fn an_answer_that_is_not_taken_holds_up_the_end_for_a_moment() {
    let mut world = World::ready();
    let mut stuck = world.connected_frontend(1);
    world.infer(&ActionSpec::default(), &[stuck.submit(1)]);
    world.settle(&mut [&mut stuck]);
    world.hands[0].finish(world.now, world.now);
    world.step();
    assert_eq!(world.counter("answers_sent"), 1);
    let died = world.now;
    world.hands[0].die();
    let is_closed = |world: &World| world.thread.heard.iter().any(|s| matches!(s, Said::Closed(_)));
    while !is_closed(&world) {
        world.pass_awake(Nanos::from_millis(1));
        world.step();
        assert!(world.now - died < Nanos::from_millis(50), "the scheduler waits for the news");
    }
}

#[test]
fn what_a_dead_executor_had_is_not_waited_for() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(1);
    let task = frontend.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut frontend]);
    assert!(world.hands[0].batch().is_some(), "it executes");
    let died = world.now;
    world.hands[0].die();
    world.until("it ends", |w| w.worker.finished());
    assert!(world.now - died < Nanos::from_millis(10), "the scheduler can still save the task");
}

/// Bytes of this process that the kernel has given.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

#[test]
fn the_memory_of_batches_is_there_before_the_first_one() {
    let row = 1 << 20;
    let before = resident();
    let _world = World::with(2, TcpConfig::default(), |config| config.models[0].input_bytes = row);
    let batches = 2 * BATCH_SLOTS * row as usize * BATCH_MAX as usize;
    let grown = resident() - before;
    assert!(grown >= batches, "{grown} of {batches}");
}
