//! What a server's refusal amounts to.

/// Why a request has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// The server gave it up: for its deadline, or under load.
    Shed(String),
    /// It broke.
    Failed(String),
}

impl Refused {
    fn new(is_shed: bool, reason: String) -> Self {
        if is_shed { Self::Shed(reason) } else { Self::Failed(reason) }
    }

    /// By the status of an HTTP answer and its header `baton-outcome`; `None` for an answer.
    pub(super) fn by_status(status: u16, outcome: Option<&str>) -> Option<Self> {
        if status == 200 {
            return None;
        }
        let shed = matches!(status, 408 | 429 | 503 | 504);
        Some(Self::by_outcome(outcome).unwrap_or_else(|| Self::new(shed, format!("http_{status}"))))
    }

    /// By gRPC's code and the trailer `baton-outcome`; `None` for an answer.
    pub(super) fn by_code(code: u32, outcome: Option<&str>) -> Option<Self> {
        if code == 0 {
            return None;
        }
        let name = CODES.get(code as usize).copied().unwrap_or("of_no_known_code");
        let shed = ["deadline_exceeded", "resource_exhausted", "unavailable"].contains(&name);
        Some(Self::by_outcome(outcome).unwrap_or_else(|| Self::new(shed, format!("grpc_{name}"))))
    }

    /// Baton's own word: `dropped/quota`.
    fn by_outcome(outcome: Option<&str>) -> Option<Self> {
        match outcome?.split_once('/')? {
            ("dropped", reason) => Some(Self::Shed(reason.to_owned())),
            ("failed", reason) => Some(Self::Failed(reason.to_owned())),
            _ => None,
        }
    }
}

/// gRPC's, by number.
const CODES: [&str; 17] = [
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_word_counts_and_otherwise_its_status() {
        let shed = |reason: &str| Some(Refused::Shed(reason.to_owned()));
        let failed = |reason: &str| Some(Refused::Failed(reason.to_owned()));
        assert_eq!(Refused::by_status(200, Some("completed")), None);
        assert_eq!(Refused::by_status(429, Some("dropped/quota")), shed("quota"));
        assert_eq!(Refused::by_status(503, Some("failed/backend_lost")), failed("backend_lost"));
        assert_eq!(Refused::by_status(503, None), shed("http_503"));
        for (status, is_shed) in [(408, true), (429, true), (500, false), (502, false), (504, true)]
        {
            let named = format!("http_{status}");
            let counted = if is_shed { shed(&named) } else { failed(&named) };
            assert_eq!(Refused::by_status(status, None), counted);
        }
        assert_eq!(Refused::by_status(400, Some("nonsense")), failed("http_400"));
        assert_eq!(Refused::by_code(0, None), None);
        assert_eq!(Refused::by_code(8, Some("dropped/window")), shed("window"));
        assert_eq!(Refused::by_code(4, None), shed("grpc_deadline_exceeded"));
        assert_eq!(Refused::by_code(13, None), failed("grpc_internal"));
        assert_eq!(Refused::by_code(99, None), failed("grpc_of_no_known_code"));
    }
}
