//! How a task can end, and why. Codes are part of the wire format: never renumber.

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $code,)* }

        impl $name {
            /// Every reason, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number that travels on the wire.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The reason with this code, or `None` when a newer peer sent one unknown here.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// A short `snake_case` word for tables, counters and logs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why the scheduler gave a task up before it was executed.
    DropReason {
        /// No GPU could finish it by its deadline any more.
        Deadline = 1, "deadline";
        /// Given up so that the tasks behind it form an efficient batch (window drop).
        Window = 2, "window";
        /// The deadline had passed, or was shorter than one execution, when the task arrived.
        DeadlinePassed = 3, "deadline_passed";
        /// The model's queue was full.
        QueueFull = 4, "queue_full";
        /// The application cancelled it.
        Cancelled = 5, "cancelled";
        /// Its frontend left or died: no client is left to hear of it.
        FrontendLost = 6, "frontend_lost";
        /// No joined backend serves the model.
        NoBackend = 7, "no_backend";
        /// The scheduler is shutting down.
        Shutdown = 8, "shutdown";
        /// More was asked for than the model's or its frontend's quota allows; it was not queued.
        Quota = 9, "quota";
        /// The model was removed from the catalogue.
        ModelRemoved = 10, "model_removed";
        /// No variant as accurate as it asks for could finish it by its deadline any more.
        Accuracy = 11, "accuracy";
    }
}

reasons! {
    /// Why a task that should have run did not produce an answer.
    FailReason {
        /// The backend died and the deadline left no time for another.
        BackendLost = 1, "backend_lost";
        /// The input slot had been reused when the backend read it.
        StaleGeneration = 2, "stale_generation";
        /// The input did not arrive before the batch had to start.
        FetchTimeout = 3, "fetch_timeout";
        /// The connection to the frontend broke while the input was read.
        FetchFailed = 4, "fetch_failed";
        /// The engine reported an error for the batch.
        Engine = 5, "engine";
        /// The scheduler does not know the model.
        UnknownModel = 6, "unknown_model";
        /// The input's size is not the model's.
        WrongSize = 7, "wrong_size";
        /// The connection to the scheduler broke while the task was outstanding.
        SchedulerLost = 8, "scheduler_lost";
        /// No outcome arrived before the lease on the input ran out (the frontend's own bound).
        LeaseExpired = 9, "lease_expired";
    }
}

/// How a task ended without an answer. Together with "completed" these are all the outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unserved {
    /// Given up by the scheduler, or cancelled.
    Dropped(DropReason),
    /// Something broke.
    Failed(FailReason),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_wire() {
        for &why in DropReason::ALL {
            assert_eq!(DropReason::from_code(why.code()), Some(why));
        }
        for &why in FailReason::ALL {
            assert_eq!(FailReason::from_code(why.code()), Some(why));
        }
    }

    #[test]
    fn unknown_codes_are_no_reason() {
        assert_eq!(DropReason::from_code(0), None);
        assert_eq!(FailReason::from_code(0), None);
        assert_eq!(DropReason::from_code(255), None);
        assert_eq!(FailReason::from_code(255), None);
    }
}
