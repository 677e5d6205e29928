//! The library an application links to have its inputs inferred by their deadlines.
//!
//! ```no_run
//! use baton_client::{Client, ClientConfig, Deadline, Outcome};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(ClientConfig::new("127.0.0.1:7700".parse()?))?;
//! let model = client.model("digits")?;
//!
//! let mut input = model.input()?;              // a slot of the slab: no copy later
//! input.fill(0);                               // a DerefMut<[u8]> of model.input_bytes()
//! let ticket = input.submit(Deadline::Slo)?;   // or Deadline::within(Duration::from_millis(20))
//!
//! match ticket.wait() {
//!     Outcome::Completed(reply) => {
//!         println!("{} bytes in {:?}", reply.bytes().len(), reply.timing().latency());
//!     }
//!     Outcome::Dropped(reason, _) => println!("dropped: {}", reason.as_str()),
//!     Outcome::Failed(reason, _) => println!("failed: {}", reason.as_str()),
//! }
//! client.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! # A task's life
//!
//! [`ModelHandle::input`] takes a free slot of the model's slab; the application writes the input
//! in place. [`Input::submit`] hands it over: the scheduler learns of the task, a backend pulls the
//! input straight out of the slot, and the answer lands in the slot's output, where [`Reply`] reads
//! it. Dropping the reply frees the slot.
//!
//! [`Input::submit_ahead`] submits first and lets the application write while the task queues.
//!
//! Slots are the one bound on outstanding tasks ([`ClientConfig::slots_per_model`]). If none is
//! free, [`ModelHandle::input`] returns an error at once, and [`ModelHandle::input_ready`] waits for one. Every queue of this crate is bounded. Only the
//! calls named `wait…`, [`Client::connect`] and [`Client::leave`] block; [`ModelHandle::input_ready`],
//! [`Client::connect_async`] and [`Client::leave_async`] are their like for programs that await.
//!
//! # Outcomes
//!
//! Every submitted task has exactly one [`Outcome`], whatever dies, at the latest
//! [`ClientConfig::lease_grace`] after its deadline:
//!
//! | outcome | means | what to do |
//! |---|---|---|
//! | `Completed(reply)` | the answer; [`Reply::late`] says whether it came after the deadline | use it |
//! | `Dropped(Deadline`, `Window)` | overload: could not be met, or made way for an efficient batch; or it passed while the scheduler was restarted | shed load |
//! | `Dropped(DeadlinePassed)` | the deadline is shorter than one execution | give more time |
//! | `Dropped(QueueFull)` | the model's queue, or the send queue to its ModelThread, is full | shed load |
//! | `Dropped(Cancelled)` | [`Ticket::cancel`], a dropped ticket, or [`Client::leave`] cancelled it | |
//! | `Dropped(NoBackend)` | no backend serves the model now | start one |
//! | `Dropped(ModelRemoved)` | an operator had removed the model when the scheduler got the task | submit to another model |
//! | `Failed(BackendLost)` | its backend died and there was no time for another | retry if it still matters |
//! | `Failed(FetchTimeout`, `FetchFailed)` | the backend could not pull the input in time | check the network |
//! | `Failed(Engine)` | the engine reported an error, or its answer has a wrong size | look at the backend's log |
//! | `Failed(WrongSize)` | the bytes that the program wrote are no row of the model | give tensors by their names: [`ModelHandle::input_of`] |
//! | `Failed(SchedulerLost)` | the scheduler was lost and did not return in time, and no backend answered | retry if it still matters |
//! | `Failed(LeaseExpired)` | no outcome by the deadline and the grace | retry if it still matters |
//! | `Failed(UnknownModel)` | the scheduler was lost, and the next one does not have the model as it was | submit to another model |
//! | `Failed(StaleGeneration)` | this ticket's outcome was taken before | a mistake in the program |
//!
//! Both come with an [`EndRecord`]: when the task was submitted and due, when it ended, and which process ended it.
//! [`Outcome::explain`] puts it into words.
//!
//! Any other `Failed(WrongSize)`, `Dropped(FrontendLost)`, and a first `Failed(StaleGeneration)` mean that client
//! and scheduler disagree about memory or membership: bugs worth reporting.
//!
//! # Threads
//!
//! A client runs one I/O thread, or none ([`Client::driven`]). [`Client`] and [`ModelHandle`] may be cloned and used from any
//! thread; [`Input`], [`Ticket`] and [`Reply`] may be sent to any thread. A [`Ticket`] is a future
//! too, for any executor. Submitting waits for no lock: while the I/O thread sleeps, the
//! caller sends what it has submitted, if no other thread is at it. Neither does an outcome that is there or awaited as a
//! future. A thread that blocks on its ticket takes one, which only the I/O thread shares that wakes it. An outcome that goes
//! through a [`CompletionQueue`] takes that queue's two locks, each for a few instructions.
//!
//! # Models that come and go
//!
//! Models may be added to a cluster and removed from it while clients are connected. A client that was connected
//! without [`ClientConfig::models`] reserves memory for every new model; others for those that they name.
//! [`Client::model`] has a new model as soon as every backend can read its inputs. Handles of a removed model
//! give no inputs any more ([`InputError::ModelRemoved`]); outstanding tasks have their outcomes as ever.
//!
//! # Ownership and the end
//!
//! The connection lives as long as any client, handle, input or ticket of it. [`Client::leave`]
//! ends it in order: it waits for outstanding tasks, and the scheduler confirms. If the scheduler
//! is stopped in order, tasks and new submits wait for the next one, for 10 s at most. If it is lost
//! otherwise, the client refuses submits with [`SubmitReason::SchedulerLost`] until it is back.
//! ([`Client::loss`] says what happened.) Then the client submits the outstanding tasks again, and the
//! same tickets get the outcomes. Replies stay valid after the client has ended.
#![forbid(unsafe_code)]

mod ahead;
mod cell;
mod client;
mod completions;
mod config;
mod counters;
mod driver;
mod end;
mod error;
mod explain;
mod input;
pub mod io;
mod io_thread;
mod line;
mod metrics;
mod model;
#[cfg(feature = "operator")]
mod operator;
mod outcome;
mod served;
mod session;
mod shared;
mod ticket;
mod view;

pub use ahead::InputAhead;
pub use baton_leader::{SchedulerLocator, StartError, Unknown};
pub use baton_membership::MembershipError;
pub use baton_metrics::{Metric, MetricsError, MetricsServer, counted};
#[cfg(feature = "operator")]
pub use baton_rdma::status;
pub use baton_rdma::wire::ChangeKind;
pub use baton_rdma::wire::RefuseCode;
pub use baton_rdma::{CredentialsError, SlabError, TcpConfig, TransportCounters, VerbsError};
pub use baton_topo::signature::{self, ElementType, Extent, RowError, TensorRef, TensorSpec};
pub use baton_topo::{
    Clock, EtcdIdentity, EtcdSpec, EtcdTlsSpec, FabricSpec, Idle, ReconnectSpec, TlsSpec,
    TransportChoice, VerbsConfig,
};
pub use baton_types::{CostHint, DropReason, FailReason, GpuId, Nanos, TaskId};
pub use client::Client;
pub use completions::{Completion, CompletionKey, CompletionQueue, CompletionQueueFull};
pub use config::ClientConfig;
pub use counters::Counters;
pub use driver::Driver;
pub use error::{
    ConfigError, ConnectError, InputError, LeaveError, Loss, SubmitError, SubmitReason,
    UnknownModel,
};
pub use explain::{Explanation, Moment, why_dropped, why_failed};
pub use input::{Deadline, Input};
pub use metrics::described;
pub use model::ModelHandle;
#[cfg(feature = "operator")]
pub use operator::{Operator, OperatorError, OperatorIo, ServedModel};
pub use outcome::{EndRecord, EndedBy, ModelVariant, Outcome, Reply, Timing, Unanswered};
pub use shared::{SharedTicket, TicketBusy, wait_for};
pub use ticket::Ticket;
pub use view::{Element, ViewError};

/// Keeps the guide's program compiling.
#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
struct Guide;
