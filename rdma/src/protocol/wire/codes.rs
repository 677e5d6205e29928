//! Enums that travel as a number.

/// Declares them, each with the reading of its number: `None` for one that a newer peer invented.
macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident: $code:ty { $($(#[$vmeta:meta])* $variant:ident = $number:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr($code)]
        pub enum $name { $($(#[$vmeta])* $variant = $number,)* }

        impl $name {
            /// The one with this code, or `None` for one that a newer peer invented.
            pub const fn from_code(code: $code) -> Option<Self> {
                match code { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    )*};
}

codes! {
    /// Who speaks. Stands in [`Hello`] and [`Welcome`].
    Role: u8 {
        /// An application's client library.
        Frontend = 1,
        /// A backend process.
        Backend = 2,
        /// The scheduler's ControlThread.
        Control = 3,
        /// One of the scheduler's ModelThreads.
        ModelThread = 4,
        /// A program that reads or changes the catalogue and is no member.
        Operator = 5,
    }

    /// Why a peer was refused or a connection closed by the other side. Travels in [`Refuse`](super::Refuse).
    RefuseCode: u16 {
        /// Bytes that are no frame of this protocol.
        Malformed = 1,
        /// No common protocol version.
        Version = 2,
        /// The token belongs to no joined member, or the certificate does not allow the role.
        Unauthorised = 3,
        /// The member has joined already.
        DuplicateJoin = 4,
        /// A bound of the receiver is reached (members, GPUs, connections, send queue).
        Limit = 5,
        /// The message does not fit the state of the conversation.
        UnexpectedMessage = 6,
        /// The request names something unknown or impossible (model, sub-cluster, size).
        BadRequest = 7,
        /// The receiver is shutting down.
        Shutdown = 8,
        /// The RDMA fabric between the two failed, or one of them insists on it and the other has none.
        Fabric = 9,
        /// Nothing was heard for longer than a member may be silent: come again.
        Silent = 10,
    }

    /// What an operator asks for, in [`CatalogChange`](super::CatalogChange).
    ChangeKind: u8 {
        /// Serve one more model.
        Add = 1,
        /// Change what is planned for a model: its objective, quota or profile.
        Set = 2,
        /// Serve a model no more.
        Remove = 3,
    }

    /// What became of an action, in [`ActionDone`](super::ActionDone).
    ActionStatus: u8 {
        /// Executed; of a batch, the backend has answered every task.
        Executed = 0,
        /// Not executed because its window had passed; the scheduler has the tasks back.
        Expired = 1,
        /// The engine failed; the backend has told every frontend.
        EngineError = 2,
        /// Refused: the backend is draining or does not know the model or GPU; the tasks go back.
        Refused = 3,
    }

    /// What became of a LOAD, in [`LoadDone`](super::LoadDone). Its victims have left in every case.
    LoadStatus: u8 {
        /// The slot has the weights.
        Loaded = 0,
        /// It could not begin in its window.
        Late = 1,
        /// There were too few free pages.
        NoPages = 2,
        /// The copy failed, or the backend could not make sense of the LOAD.
        Failed = 3,
    }

    /// Why a LOAD failed. A scheduler takes one that it does not know for `Other`, which is all that older backends say.
    LoadFault: u8 {
        /// What the backend's log says.
        Other = 0,
        /// The model's file cannot be read.
        Unreadable = 1,
        /// The model's file is another one than its table says.
        Different = 2,
        /// The copy did not end.
        Hung = 3,
    }
}
