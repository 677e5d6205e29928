//! An operator's side of the conversation.

use std::net::SocketAddr;
use std::{fmt, io};

use baton_membership::{Catalogue, DescribedModel};
use baton_rdma::status::ClusterStatus;
use baton_rdma::wire::{CatalogChange, ChangeKind, Hello, Message, RefuseCode, Role, StatusAsk};
use baton_rdma::{CloseReason, ConnId, Event, Events, SendError, Transport};
use baton_topo::signature::TensorSpec;
use baton_topo::{Agent, Waker};
use baton_types::Nanos;

/// A model of the catalogue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedModel {
    /// Its id, which no other model will have.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The sub-cluster that serves it.
    pub subcluster: String,
    /// The ModelThread on which it lives.
    pub model_thread: u32,
    /// The largest batch.
    pub batch_max: u32,
    /// Its latency objective.
    pub slo: Nanos,
    /// Bytes of the longest input row, and of the longest output row.
    pub row_bytes: [u32; 2],
    /// What it takes and gives; empty for an emulated model, which takes and gives bytes.
    pub tensors: [Vec<TensorSpec>; 2],
    /// Its variants, the cheapest first: their names, and how many of their answers are right, in 1/100,000.
    pub variants: Vec<(String, u32)>,
}

/// How far the answer to the question how the cluster fares has come.
#[derive(Default, Debug)]
struct StatusAnswer {
    so_far: ClusterStatus,
    /// Where the part begins that was asked for.
    from: u64,
    complete: Option<Result<(), String>>,
}

/// An operator's side of the conversation, for who moves time by hand; [`Operator`](super::Operator) runs one.
pub struct OperatorIo<T> {
    transport: T,
    control: ConnId,
    scheduler: SocketAddr,
    /// While it arrives.
    catalogue: Catalogue,
    models: Vec<ServedModel>,
    is_complete: bool,
    answer: Option<Result<String, String>>,
    status: StatusAnswer,
    closed: Option<String>,
}

impl<T: Transport> OperatorIo<T> {
    /// Begins to connect to the scheduler.
    ///
    /// # Errors
    /// The address cannot be reached at all.
    pub fn new(mut transport: T, scheduler: SocketAddr) -> io::Result<Self> {
        let control = transport.connect(scheduler, Hello::new(Role::Operator, 0, 0))?;
        Ok(Self {
            transport,
            control,
            scheduler,
            catalogue: Catalogue::default(),
            models: Vec::new(),
            is_complete: false,
            answer: None,
            status: StatusAnswer::default(),
            closed: None,
        })
    }

    fn take_in(&mut self, now: Nanos) -> usize {
        let mut events = Events::new();
        let taken = self.transport.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Message { conn, message } if conn == self.control => {
                    self.on_message(message);
                }
                Event::Closed { conn, reason } if conn == self.control => {
                    self.closed = Some(in_words(&reason));
                }
                // Or of a stranger, who found this port and is nobody to listen to.
                _ => {}
            }
        }
        self.transport.flush();
        taken
    }

    /// Whether the catalogue is here: from then on [`OperatorIo::ask`] may be called.
    pub fn is_connected(&self) -> bool {
        self.is_complete
    }

    /// Why the connection has ended, once it has.
    pub fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    /// The models that were served when it connected.
    pub fn models(&self) -> &[ServedModel] {
        &self.models
    }

    /// Asks for a change: see [`Operator`](super::Operator) for the texts. One at a time.
    ///
    /// # Errors
    /// The connection is over, or the text is longer than a message may be.
    pub fn ask(&mut self, kind: ChangeKind, text: &str) -> Result<(), SendError> {
        let change = CatalogChange { kind: kind as u8, reserved: [0; 3] };
        self.transport.send(self.control, &change, text.as_bytes())
    }

    /// Asks how the cluster fares. One question at a time.
    ///
    /// # Errors
    /// The connection is over.
    pub fn ask_status(&mut self) -> Result<(), SendError> {
        self.status = StatusAnswer::default();
        self.transport.send(self.control, &StatusAsk { from: 0.into() }, &[])
    }

    /// How the cluster fares, once the answer is complete; or what is wrong with it.
    pub fn take_status(&mut self) -> Option<Result<ClusterStatus, String>> {
        let complete = self.status.complete.take()?;
        Some(complete.map(|()| std::mem::take(&mut self.status.so_far)))
    }

    /// The last part is here, or what is here makes no sense.
    fn on_status_part(&mut self, next: u64, text: &str) {
        let status = &mut self.status;
        let taken = status.so_far.take_in(text);
        let goes_on = next > status.from;
        let sent = match taken {
            Ok(()) if next == 0 => Ok(()),
            Ok(()) if goes_on => {
                status.from = next;
                let ask = StatusAsk { from: next.into() };
                // If it cannot be sent, the connection ends, and that is the error.
                let _ = self.transport.send(self.control, &ask, &[]);
                return;
            }
            Ok(()) => Err("the scheduler's answer does not come to an end".to_owned()),
            Err(problem) => Err(problem),
        };
        status.complete = Some(sent);
    }

    pub(super) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn has_status(&self) -> bool {
        self.status.complete.is_some()
    }

    pub(super) fn close(&mut self) {
        self.transport.close(self.control, RefuseCode::Shutdown, "the operator is done");
        self.transport.flush();
    }

    /// How the change went, in words, once it is complete.
    pub fn take_answer(&mut self) -> Option<Result<String, String>> {
        self.answer.take()
    }

    fn on_message(&mut self, message: Message<'_>) {
        match message {
            Message::CatalogEnd(_) => self.complete(),
            Message::StatusPart(part, text) => self.on_status_part(part.next.get(), text),
            Message::CatalogChanged(changed, text) => {
                let text = text.to_owned();
                self.answer = Some(if changed.status == 0 { Ok(text) } else { Err(text) });
            }
            message if !self.is_complete => {
                if let Err(error) = self.catalogue.take_in(&message, self.scheduler.ip()) {
                    self.closed = Some(error.to_string());
                }
            }
            _ => {}
        }
    }

    fn complete(&mut self) {
        self.is_complete = true;
        let catalogue = std::mem::take(&mut self.catalogue);
        let named = |model: &DescribedModel| {
            let subcluster = model.desc.subcluster.get();
            let name = catalogue.subcluster_name(subcluster);
            served(model, name.map_or_else(|| subcluster.to_string(), str::to_owned))
        };
        self.models = catalogue.models().iter().map(named).collect();
    }
}

fn served(model: &DescribedModel, subcluster: String) -> ServedModel {
    let desc = &model.desc;
    ServedModel {
        id: model.id(),
        name: model.name.clone(),
        subcluster,
        model_thread: desc.thread.get(),
        batch_max: desc.batch_max.get(),
        slo: Nanos(desc.slo_ns.get()),
        row_bytes: [desc.input_bytes.get(), desc.output_bytes.get()],
        tensors: model.tensors.clone(),
        variants: model.variants.iter().map(|v| (v.name.clone(), v.accuracy)).collect(),
    }
}

impl<T: Transport> Agent for OperatorIo<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.take_in(now)
    }

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.transport.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn finished(&self) -> bool {
        self.closed.is_some()
    }
}

impl<T> fmt::Debug for OperatorIo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorIo").field("models", &self.models.len()).finish_non_exhaustive()
    }
}

fn in_words(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Refused { detail, .. } => detail.clone(),
        CloseReason::Reset(_) => format!("{reason}; start it, or correct its address"),
        other => other.to_string(),
    }
}
