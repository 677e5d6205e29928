//! An election step by step, with the time moved by hand.

use baton_types::Nanos;

use crate::election::{Election, End, Step};
use crate::etcd_messages::{EtcdRequest, EtcdResponse, Holder, LeaseId};

const TTL: Nanos = ms(2_000);
const LEASE: LeaseId = LeaseId(7);

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// An election and the request it asked last.
struct Scene {
    election: Election,
    sent: Nanos,
}

impl Scene {
    fn new() -> Self {
        Self { election: Election::new(TTL), sent: Nanos::ZERO }
    }

    /// It asks this at `now`.
    fn asks(&mut self, now: Nanos, request: EtcdRequest) -> &mut Self {
        assert_eq!(self.election.step(now), Step::Ask(request), "at {now:?}");
        self.sent = now;
        self
    }

    fn hears(&mut self, now: Nanos, answer: EtcdResponse) -> &mut Self {
        self.election.answered(self.sent, now, Some(answer));
        self
    }

    fn hears_nothing(&mut self, now: Nanos) -> &mut Self {
        self.election.answered(self.sent, now, None);
        self
    }

    fn waits_until(&mut self, now: Nanos, until: Nanos) -> &mut Self {
        assert_eq!(self.election.step(now), Step::Wait(until), "at {now:?}");
        self
    }

    fn has_ended(&mut self, now: Nanos, end: End) {
        assert_eq!(self.election.step(now), Step::Ended(end));
        assert_eq!(self.election.lease_deadline(now), None);
    }

    /// No scheduler leads; it gets a lease at 10 ms, asked for at 5 ms.
    fn with_lease() -> Self {
        let mut scene = Self::new();
        scene.asks(ms(1), EtcdRequest::Look).hears(ms(4), EtcdResponse::Held(None));
        scene.asks(ms(5), EtcdRequest::Grant);
        scene.hears(ms(10), EtcdResponse::Granted { lease: LEASE, ttl: TTL });
        scene
    }

    /// It leads from 20 ms on, with a lease that counts from 5 ms.
    fn leading() -> Self {
        let mut scene = Self::with_lease();
        scene
            .asks(ms(11), EtcdRequest::Campaign(LEASE))
            .hears(ms(20), EtcdResponse::Won { epoch: 3 });
        scene
    }
}

const fn held(lease: LeaseId) -> EtcdResponse {
    EtcdResponse::Held(Some(Holder { lease, epoch: 3, addr: None }))
}

#[test]
fn a_candidate_that_finds_no_leader_leads_and_renews_from_then_on() {
    let mut scene = Scene::leading();
    // 2 s less an eighth, from before the lease was asked for.
    assert_eq!(scene.election.lease_deadline(ms(21)), Some((3, ms(1_755))));
    scene.asks(ms(21), EtcdRequest::Renew(LEASE)).hears(ms(60), EtcdResponse::Renewed { ttl: TTL });
    assert_eq!(scene.election.lease_deadline(ms(60)), Some((3, ms(1_771))));
    scene.waits_until(ms(61), ms(421)).asks(ms(421), EtcdRequest::Renew(LEASE));
}

/// Another may lead from then on.
#[test]
fn a_leader_that_is_not_answered_looks_up_when_its_lease_ends() {
    let mut scene = Scene::leading();
    scene.asks(ms(1_740), EtcdRequest::Renew(LEASE)).hears_nothing(ms(1_750));
    scene.waits_until(ms(1_751), ms(1_755)).has_ended(ms(1_755), End::Lost);
}

#[test]
fn a_standby_looks_again_and_again() {
    let mut scene = Scene::new();
    scene.asks(ms(1), EtcdRequest::Look).hears(ms(2), held(LEASE)).waits_until(ms(3), ms(202));
    assert_eq!(scene.election.leader().map(|holder| holder.lease), Some(LEASE));
    scene.asks(ms(202), EtcdRequest::Look).hears_nothing(ms(602)).waits_until(ms(603), ms(802));
}

#[test]
fn who_campaigns_too_late_stands_by() {
    let mut scene = Scene::with_lease();
    scene.asks(ms(11), EtcdRequest::Campaign(LEASE)).hears(ms(12), held(LeaseId(8)));
    assert_eq!(scene.election.lease_deadline(ms(12)), None);
    assert_eq!(scene.election.leader().map(|holder| holder.lease), Some(LeaseId(8)));
    scene.waits_until(ms(13), ms(212)).asks(ms(212), EtcdRequest::Look);
}

#[test]
fn a_campaign_without_answer_is_looked_up() {
    let mut scene = Scene::with_lease();
    scene.asks(ms(11), EtcdRequest::Campaign(LEASE)).hears_nothing(ms(411));
    scene.waits_until(ms(412), ms(461)).asks(ms(461), EtcdRequest::Look);
    let mut lost = Scene { election: scene.election.clone(), sent: scene.sent };
    let mut open = Scene { election: scene.election.clone(), sent: scene.sent };
    scene.hears(ms(470), held(LEASE));
    assert_eq!(scene.election.lease_deadline(ms(470)), Some((3, ms(1_755))), "it was won");
    lost.hears(ms(470), held(LeaseId(8))).waits_until(ms(471), ms(670));
    open.hears(ms(470), EtcdResponse::Held(None)).asks(ms(471), EtcdRequest::Campaign(LEASE));
    // The first campaign was carried out after all.
    open.hears(ms(480), held(LEASE));
    assert!(open.election.lease_deadline(ms(480)).is_some());
}

#[test]
fn a_campaign_won_when_the_lease_may_have_ended_is_worth_nothing() {
    let mut scene = Scene::with_lease();
    scene
        .asks(ms(11), EtcdRequest::Campaign(LEASE))
        .hears(ms(1_755), EtcdResponse::Won { epoch: 3 });
    assert_eq!(scene.election.lease_deadline(ms(1_755)), None);
    assert!(matches!(scene.election.step(ms(1_755)), Step::Wait(_)), "it stands by");
}

/// etcd still shows the lease; by this clock it may have ended, and the process is none that led.
#[test]
fn who_learns_of_its_victory_when_the_lease_may_have_ended_stands_by() {
    let mut scene = Scene::with_lease();
    scene.asks(ms(11), EtcdRequest::Campaign(LEASE)).hears_nothing(ms(411));
    scene.asks(ms(1_754), EtcdRequest::Look).hears(ms(1_755), held(LEASE));
    assert_eq!(scene.election.lease_deadline(ms(1_755)), None);
    assert!(matches!(scene.election.step(ms(1_756)), Step::Wait(_)), "it stands by");
}

/// While it asks for a lease, members that ask it hear of no leader that is gone.
#[test]
fn a_leader_whose_key_is_gone_is_none() {
    let mut scene = Scene::new();
    scene.asks(ms(1), EtcdRequest::Look).hears(ms(4), held(LeaseId(9)));
    assert_eq!(scene.election.leader().map(|holder| holder.lease), Some(LeaseId(9)));
    scene.asks(ms(204), EtcdRequest::Look).hears(ms(205), EtcdResponse::Held(None));
    assert_eq!(scene.election.leader(), None);
}

#[test]
fn a_leader_that_cannot_renew_tries_often_and_stops_before_its_lease_can_have_ended() {
    let mut scene = Scene::leading();
    let mut now = ms(21);
    let mut attempts = 0;
    while let Step::Ask(request) = scene.election.step(now) {
        assert_eq!(request, EtcdRequest::Renew(LEASE));
        attempts += 1;
        scene.election.answered(now, now + ms(400), None);
        now = now + ms(450);
    }
    assert_eq!(attempts, 4);
    assert_eq!(scene.election.lease_deadline(ms(1_754)), None, "asked after the end");
    scene.has_ended(ms(1_821), End::Lost);
}

#[test]
fn nothing_is_renewed_after_the_end_however_good_the_answer() {
    let mut scene = Scene::leading();
    scene.asks(ms(1_700), EtcdRequest::Renew(LEASE));
    assert!(scene.election.lease_deadline(ms(1_754)).is_some());
    assert_eq!(scene.election.lease_deadline(ms(1_755)), None);
    scene.hears(ms(1_755), EtcdResponse::Renewed { ttl: TTL }).has_ended(ms(1_756), End::Lost);
}

#[test]
fn a_process_that_stood_still_finds_out_at_its_first_step() {
    let mut scene = Scene::leading();
    scene.asks(ms(21), EtcdRequest::Renew(LEASE)).hears(ms(22), EtcdResponse::Renewed { ttl: TTL });
    scene.waits_until(ms(23), ms(421));
    scene.has_ended(ms(9_000), End::Lost);
}

#[test]
fn a_lease_that_etcd_knows_no_more_ends_leadership_at_once() {
    let mut scene = Scene::leading();
    scene.asks(ms(21), EtcdRequest::Renew(LEASE)).hears(ms(22), EtcdResponse::Gone);
    scene.has_ended(ms(22), End::Lost);
}

#[test]
fn a_shorter_renewal_does_not_shorten_what_was_granted() {
    let mut scene = Scene::leading();
    scene
        .asks(ms(21), EtcdRequest::Renew(LEASE))
        .hears(ms(22), EtcdResponse::Renewed { ttl: ms(100) });
    assert_eq!(scene.election.lease_deadline(ms(22)), Some((3, ms(1_755))));
}

#[test]
fn a_candidate_that_is_unsure_looks_again_soon_however_long_its_lease_lasts() {
    let mut unsure = Scene::with_lease();
    unsure.asks(ms(11), EtcdRequest::Campaign(LEASE)).hears_nothing(ms(20));
    unsure.waits_until(ms(21), ms(70)).asks(ms(70), EtcdRequest::Look).hears_nothing(ms(80));
    unsure.waits_until(ms(81), ms(130)).asks(ms(130), EtcdRequest::Look);
}

/// Its lease counts from 5 ms: by 1,755 ms it may have ended, and is worth nothing.
#[test]
fn a_lease_is_of_use_up_to_its_end_and_no_longer() {
    let (last, over) = (ms(1_754), ms(1_755));
    let campaign = EtcdRequest::Campaign(LEASE);
    let mut campaigning = Scene::with_lease();
    campaigning.asks(last, campaign).asks(over, EtcdRequest::Look);
    let mut unsure = Scene::with_lease();
    unsure.asks(ms(11), campaign).hears_nothing(ms(1_750));
    unsure.waits_until(last, ms(1_800)).asks(over, EtcdRequest::Look).hears(over, held(LEASE));
    unsure.waits_until(over, over + ms(200));
    let mut leading = Scene::leading();
    leading.asks(last, EtcdRequest::Renew(LEASE)).has_ended(over, End::Lost);
    let mut resigning = Scene::leading();
    resigning.election.resign(ms(1_700));
    resigning.asks(last, EtcdRequest::Revoke(LEASE)).has_ended(over, End::Resigned);
}

#[test]
fn who_resigns_gives_the_lease_back_and_tries_three_times() {
    let mut scene = Scene::leading();
    scene.election.resign(ms(30));
    assert_eq!(scene.election.lease_deadline(ms(30)), None);
    let mut heard = Scene { election: scene.election.clone(), sent: scene.sent };
    heard.asks(ms(30), EtcdRequest::Revoke(LEASE)).hears(ms(31), EtcdResponse::Revoked);
    heard.has_ended(ms(31), End::Resigned);
    for now in [30, 480, 930] {
        scene.asks(ms(now), EtcdRequest::Revoke(LEASE)).hears_nothing(ms(now + 400));
        if now < 930 {
            scene.waits_until(ms(now + 449), ms(now + 450));
        }
    }
    scene.has_ended(ms(1_331), End::Resigned);
    let mut standby = Scene::new();
    standby.election.resign(ms(1));
    standby.has_ended(ms(1), End::Resigned);
}
