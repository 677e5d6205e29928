//! A ModelThread alone, between the ends of its links: what comes when another thread was faster than usual.

use baton_core::{BackendId, FrontendId, Gpu, GpuId, SlotPart, Slowdown, TaskId, Unserved};
use baton_rdma::wire::{Hello, Role};
use baton_rdma::{Identity, InprocNetwork, InprocTransport, TcpConfig};
use crossbeam_channel::Receiver;

use super::*;
use crate::cache::link::{CacheEnds, CacheOrder, LoadOrder, LoadReport, cache_links};
use crate::cache::news::{Failure, LoadEnd};
use crate::commands::Notice;
use crate::link::{CommandSender, NoticeSender, RankLink, link};
use crate::mail::ToRank;
use crate::migration::channel::{MigrationMessage, channel};

/// A model that is not here.
const MODEL: ModelId = ModelId(1);
const SLOT: Gpu = Gpu { id: GpuId(5), life: 2 };
const GRANT: Grant = Grant {
    gpu: SLOT,
    free_at: Nanos::ZERO,
    port_wait: Nanos::ZERO,
    slowdown: Slowdown::NONE,
    slot_wait: Nanos::ZERO,
    longest: Nanos::MAX,
    spare: 0,
    part: SlotPart::NONE,
    is_short_of_slots: false,
    others_lose: false,
};

struct Bed {
    network: InprocNetwork,
    thread: ModelThread<InprocTransport>,
    rank: RankLink,
    commands: CommandSender<ModelCommand>,
    notices: Receiver<Notice>,
    cache: CacheEnds,
    counters: Arc<ModelThreadCounters>,
}

impl Bed {
    /// A thread without models, of a scheduler that may have two.
    fn new() -> Self {
        let network = InprocNetwork::new();
        let identity = Identity { role: Role::ModelThread, member: 0 };
        // Not even one LOAD finds room.
        let bounds = TcpConfig { send_queue_bytes: 8, ..TcpConfig::default() };
        let transport = network.endpoint_with(identity, bounds);
        let no_op = || Waker::new(|| ());
        let (sender, notices) = NoticeSender::new(no_op(), 1, 2);
        let (cache, mut cache_link) = cache_links(1, 2, 8);
        let (link, (_, rank), commands) =
            link(2, false, (no_op(), no_op()), sender, cache_link.pop());
        let counters = Arc::<ModelThreadCounters>::default();
        let boards = (Arc::new(LoadBoard::new(2)), Arc::new(TaskBoard::new(2)));
        let thread =
            ModelThread::new(vec![], (2, 1), transport, link, boards, Arc::clone(&counters));
        Self { network, thread, rank, commands, notices, cache, counters }
    }

    /// What the RankThread hears of after a pass.
    fn told_rank(&mut self) -> Vec<ToRank> {
        self.thread.poll(Nanos(1));
        let mut mail = Vec::new();
        self.rank.take_mail(&mut mail);
        mail.into_iter().map(ToRank::unpack).collect()
    }

    fn forgotten(&mut self) -> bool {
        self.thread.poll(Nanos(1));
        self.notices.try_iter().any(|notice| matches!(notice, Notice::Forgotten(MODEL)))
    }
}

/// Else its slot would wait for a batch for ever.
#[test]
fn a_grant_of_a_model_that_has_gone_is_given_back() {
    let mut bed = Bed::new();
    bed.rank.grant(MODEL, GRANT);
    bed.rank.announce();
    let returned = ToRank::Update(MODEL, GpuUpdate::Returned { gpu: SLOT });
    assert_eq!(bed.told_rank(), [returned]);
}

/// The model was removed after its move: each task that still follows it ends, and each grant is given back.
#[test]
fn what_follows_a_model_that_is_removed_meanwhile_comes_to_an_end() {
    let mut bed = Bed::new();
    let (mut to, from) = channel(Waker::new(|| ()));
    bed.commands.send(ModelCommand::Adopt { model: MODEL, from });
    bed.commands.send(ModelCommand::Forget { model: MODEL });
    assert!(!bed.forgotten(), "its next life would get what follows");
    let task = |slot| TaskId::new(FrontendId(1), slot, 0);
    let [first, second] = [0, 1].map(|slot| Request::new(task(slot), Nanos(9)));
    let otherwise = Unserved::Dropped(DropReason::Deadline);
    to.send(MigrationMessage::Submit(first));
    to.send(MigrationMessage::Requeue(second, otherwise));
    to.send(MigrationMessage::Cancel(task(2)));
    to.send(MigrationMessage::Grant(GRANT));
    let returned = ToRank::Update(MODEL, GpuUpdate::Returned { gpu: SLOT });
    assert_eq!(bed.told_rank(), [returned]);
    let counted = [&bed.counters.dropped_model_removed, &bed.counters.cancelled_late];
    assert_eq!(counted.map(|counter| counter.get()), [2, 1]);
    assert!(!bed.forgotten(), "more may follow");
    drop(to);
    assert!(bed.forgotten());
}

/// What it holds is not known any more: it has to join again.
#[test]
fn a_backend_that_takes_no_load_is_lost_and_the_load_with_it() {
    let mut bed = Bed::new();
    let (backend, token) = (BackendId(3), 77);
    bed.commands.send(ModelCommand::BackendUp { backend, token, gpus: vec![SLOT] });
    bed.thread.poll(Nanos(1));
    let mut member = bed.network.endpoint(Identity { role: Role::Backend, member: 3 });
    let addr = bed.thread.out.transport.local_addr();
    member.connect(addr, Hello::new(Role::Backend, 3, token)).expect("it listens");
    member.flush();
    bed.thread.poll(Nanos(1));
    assert!(bed.thread.out.peers.backend_of(SLOT).is_some(), "it is connected");
    let load = LoadOrder { name: 9, model: MODEL, gpu: SLOT, latest: Nanos(5), victims: [].into() };
    bed.cache.threads[0].send(CacheOrder::Load(load)).expect("there is room");
    bed.thread.poll(Nanos(1));
    let end = LoadEnd::Failed(Failure::Unsent);
    let report = LoadReport { name: 9, slot: SLOT.id, end };
    assert_eq!(bed.cache.reports.try_iter().collect::<Vec<_>>(), [report]);
    let lost = |notice: &Notice| matches!(notice, Notice::BackendLost(BackendId(3)));
    assert_eq!(bed.notices.try_iter().filter(lost).count(), 1);
    assert_eq!(bed.counters.loads_undelivered.get(), 1);
}
