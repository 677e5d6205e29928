//! Messages between the simulated threads.

use std::collections::VecDeque;

use baton_core::{Candidate, Gpu, GpuUpdate, Grant, ModelId, Nanos, RankSink};

/// What models and RankState tell each other.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    Candidate(ModelId, Option<Candidate>, u32),
    Gpu(GpuUpdate),
    Grant(ModelId, Grant),
}

/// Messages under way, oldest first. One lag for all keeps them in order.
pub(crate) struct Mail {
    lag: Nanos,
    pub(crate) queue: VecDeque<(Nanos, Message)>,
    /// Grants that the cache has not heard of.
    pub(crate) granted: Vec<(ModelId, Gpu)>,
}

/// Puts messages into the mail.
pub(crate) struct Post<'a> {
    due: Nanos,
    queue: &'a mut VecDeque<(Nanos, Message)>,
    granted: &'a mut Vec<(ModelId, Gpu)>,
}

impl Mail {
    /// Nothing is under way.
    pub(crate) fn new(lag: Nanos) -> Self {
        Self { lag, queue: VecDeque::new(), granted: Vec::new() }
    }

    /// What is posted now.
    pub(crate) fn at(&mut self, now: Nanos) -> Post<'_> {
        Post { due: now + self.lag, queue: &mut self.queue, granted: &mut self.granted }
    }
}

impl Post<'_> {
    pub(crate) fn post(&mut self, message: Message) {
        self.queue.push_back((self.due, message));
    }
}

impl RankSink for Post<'_> {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.post(Message::Grant(model, grant));
        self.granted.push((model, grant.gpu));
    }

    fn drained(&mut self, _gpu: Gpu) {}
}
