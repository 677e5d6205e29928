//! What a member hands to its [`crate::Membership`], and gets from it.

use baton_leader::SchedulerLocator;
use baton_rdma::wire::{JoinAck, Message, Role};
use baton_topo::ReconnectSpec;
use baton_types::Nanos;

/// What a member is, and its bounds.
#[derive(Clone, Debug)]
pub struct Member {
    /// Client or backend.
    pub role: Role,
    /// Where the scheduler is.
    pub scheduler: SchedulerLocator,
    /// The pauses between attempts.
    pub reconnect: ReconnectSpec,
    /// Members with different seeds try again at different moments.
    pub seed: u64,
    /// How long all attempts to join for the first time may take; each later one has it for itself.
    pub join_timeout: Nanos,
    /// The setting that `join_timeout` comes from, for errors.
    pub join_timeout_setting: &'static str,
    /// How long a ping may go unanswered.
    pub member_timeout: Nanos,
}

/// What a pass has moved.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing.
    Idle,
    /// A ping was sent.
    Pinged,
    /// An attempt to join has begun. Nothing of the life before holds any longer.
    Connecting,
    /// The member is Ready: a new life has begun.
    Ready,
}

/// What a message on the control connection meant.
#[must_use]
#[derive(Debug)]
pub enum Received<'m> {
    /// The membership has dealt with it.
    Handled,
    /// The catalogue is complete. The member announces what it brings and calls [`crate::Membership::ask_to_join`].
    Complete,
    /// The scheduler has admitted this member.
    Admitted(&'m JoinAck),
    /// The scheduler has let this member go.
    Left,
    /// It concerns the member alone.
    Other(Message<'m>),
}
