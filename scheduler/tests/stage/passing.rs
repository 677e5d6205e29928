//! Time passes, and nothing happens but pings.

use baton_core::Nanos;

use super::{Member, Stage, ms};

/// Lets time pass; who is alive says so.
pub fn pass(stage: &mut Stage, alive: &mut [&mut Member], time: Nanos) {
    let end = stage.now + time;
    while stage.now < end {
        for member in alive.iter_mut() {
            member.ping();
            stage.exchange(member);
        }
        stage.advance(ms(100));
    }
}
