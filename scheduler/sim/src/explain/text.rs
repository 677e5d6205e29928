//! An explanation for people.

use std::fmt::{self, Display, Formatter};

use baton_core::DropReason;

use super::story::{
    BatchStory, CandidateView, Cause, Decision, Explanation, Moment, Outcome, Place, Step,
    TaskStory, What,
};

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} at {} tasks/s, seed {}", self.policy, self.rate_rps, self.seed)?;
        if let Some(moment) = &self.moment {
            write!(f, "\n{moment}")?;
        }
        self.batches.iter().try_for_each(|batch| write!(f, "\n{batch}"))?;
        self.tasks.iter().try_for_each(|task| write!(f, "\n{task}"))?;
        let nothing = self.moment.is_none() && self.batches.is_empty() && self.tasks.is_empty();
        if nothing {
            writeln!(
                f,
                "\nno task of this run ended so after the warm-up; a higher --rate loses some"
            )
        } else {
            Ok(())
        }
    }
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (at, busy) = (self.at_ms, self.busy.len());
        writeln!(f, "at {at:.3} ms: idle GPUs: {}, batches under way: {busy}", self.idle_gpus)?;
        for gpu in &self.busy {
            let (slot, batch, tasks, model) = (gpu.gpu, gpu.batch, gpu.tasks, &gpu.model);
            let start = gpu.exec_at_ms;
            writeln!(f, "  GPU {slot}: batch {batch}, {tasks} of {model}, from {start:.3} on")?;
        }
        for model in &self.models {
            write!(f, "  {}: {} wait; ", model.model, model.waiting)?;
            match &model.candidate {
                Some(candidate) => writeln!(f, "candidate of {candidate}")?,
                None => writeln!(f, "no candidate")?,
            }
        }
        Ok(())
    }
}

impl Display for CandidateView {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { tasks, exec_at_ms, invalid_after_ms, urgency_ms, .. } = self;
        write!(f, "{tasks}, window [{exec_at_ms:.3}, {invalid_after_ms:.3}]")?;
        write!(f, ", urgency {urgency_ms:.3}")
    }
}

impl Display for BatchStory {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { batch, model, gpu, sealed_ms, exec_at_ms, invalid_after_ms, .. } = self;
        let tasks = self.tasks.len();
        writeln!(f, "batch {batch}: {tasks} tasks of {model} on GPU {gpu}")?;
        write!(f, "  sealed at {sealed_ms:.3} ms, start {exec_at_ms:.3}")?;
        write!(f, ", latest start {invalid_after_ms:.3}")?;
        match self.end_ms {
            Some(end_ms) => writeln!(f, ", ended {end_ms:.3}, {} late", self.late)?,
            None => writeln!(f, ", did not end")?,
        }
        writeln!(f, "  tasks {}", ids(&self.tasks))?;
        if !self.given_up.is_empty() {
            writeln!(f, "  given up for it: {}", ids(&self.given_up))?;
        }
        writeln!(f, "  left behind: {}", self.left_behind)?;
        write!(f, "  its head, {}", self.head)
    }
}

impl Display for TaskStory {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { task, model, arrived_ms, deadline_ms, outcome, .. } = self;
        writeln!(f, "task {task} of {model}: {outcome}")?;
        writeln!(f, "  arrived {arrived_ms:.3} ms, deadline {deadline_ms:.3}")?;
        for (i, step) in self.steps.iter().enumerate() {
            let alike = |other: Option<&Step>| other.is_some_and(|other| step.continues(other));
            let before = i.checked_sub(1).and_then(|i| self.steps.get(i));
            if alike(before) && alike(self.steps.get(i + 1)) {
                continue;
            }
            writeln!(f, "  {:>12.3}  {}", step.at_ms, step.what)?;
        }
        Ok(())
    }
}

impl Step {
    /// Candidates that say the same but for their size and times: of a row only the first and the
    /// last are shown.
    fn continues(&self, other: &Self) -> bool {
        let kind = |what: &What| match *what {
            What::Candidate { place, decision, gives_up, .. } => {
                Some((std::mem::discriminant(&place), decision, gives_up > 0))
            }
            _ => None,
        };
        kind(&self.what).is_some_and(|mine| kind(&other.what) == Some(mine))
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTime => "executed in time",
            Self::Late => "executed too late",
            Self::Dropped => "dropped",
            Self::Open => "not ended",
        })
    }
}

impl Display for What {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued { cause, number, waiting } => {
                write!(f, "{cause}: queued as number {number} of {waiting}")
            }
            Self::Candidate { .. } => self.candidate(f),
            Self::Cold { load_ms } => {
                write!(f, "no GPU holds its model: a load takes {load_ms:.3} ms")
            }
            Self::Loading { until_ms } => {
                write!(f, "waits for a load of its model until {until_ms:.3}")
            }
            Self::Loaded { waited_ms } => {
                write!(f, "its model is loaded: waited {waited_ms:.3} ms for that")
            }
            Self::NoCandidate => f.write_str("no candidate: nothing that waits can run in time"),
            Self::Granted { gpu, free_at_ms, due_for_ms, others_first } => {
                write!(
                    f,
                    "granted GPU {gpu}, free at {free_at_ms:.3}; due for {due_for_ms:.3} ms"
                )?;
                let others = *others_first > 0;
                if others { write!(f, ", {others_first} more urgent first") } else { Ok(()) }
            }
            Self::Sealed { batch, gpu, tasks, number, exec_at_ms, invalid_after_ms, given_up } => {
                write!(f, "number {number} of the {tasks} tasks of batch {batch} on GPU {gpu}: ")?;
                write!(f, "start {exec_at_ms:.3}, at the latest {invalid_after_ms:.3}")?;
                let heads = *given_up > 0;
                if heads { write!(f, "; heads given up for it: {given_up}") } else { Ok(()) }
            }
            Self::LeftBehind { batch, tasks, over_ms } if *over_ms > 0.0 => {
                write!(
                    f,
                    "left behind by batch {batch} of {tasks}: one more task would have made "
                )?;
                write!(f, "its head {over_ms:.3} ms late")
            }
            Self::LeftBehind { batch, tasks, .. } => {
                write!(f, "left behind by batch {batch} of {tasks}, the most its policy takes")
            }
            Self::Returned { gpu } => write!(f, "GPU {gpu} given back: no batch fits"),
            Self::Dropped { .. } => self.dropped(f),
            Self::Executed { late_by_ms } if *late_by_ms > 0.0 => {
                write!(f, "executed, {late_by_ms:.3} ms too late")
            }
            Self::Executed { late_by_ms } => {
                write!(f, "executed, {:.3} ms before its deadline", -late_by_ms)
            }
        }
    }
}

impl What {
    fn candidate(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self::Candidate {
            cause, candidate, place, gives_up, waiting, idle_gpus, floor, ..
        } = self
        else {
            return Ok(());
        };
        write!(f, "{cause}: candidate of {} of {waiting}, {place}", candidate.tasks)?;
        if *gives_up > 0 {
            write!(f, ", heads given up: {gives_up} (floor {floor})")?;
        }
        self.decision(f)?;
        write!(f, "; idle GPUs: {idle_gpus}")
    }

    fn decision(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self::Candidate { candidate, decision, beta_lambda, .. } = self else { return Ok(()) };
        let (exec_at, until) = (candidate.exec_at_ms, candidate.invalid_after_ms);
        let frontrun = candidate.frontrun_ms;
        let beta_lambda = beta_lambda.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
        let early = format!("; due although one more would fit until {frontrun:.3}");
        match decision {
            Decision::WaitsForFrontrun => {
                write!(f, "; waits until {exec_at:.3}, then one more would not fit")?;
                write!(f, "; βλ = {beta_lambda}")
            }
            Decision::WaitsForMore => {
                write!(f, "; waits until {exec_at:.3}, then too few are expected before ")?;
                write!(f, "{frontrun:.3}, when one more would not fit")
            }
            Decision::Frontrun => {
                write!(f, "; due: one more would not fit, valid until {until:.3}")
            }
            Decision::Largest => write!(f, "; due: the largest batch, valid until {until:.3}"),
            Decision::Filled => write!(f, "{early}: more than βλ = {beta_lambda}"),
            Decision::FewExpected => write!(f, "{early}: too few are expected"),
            Decision::WaitedLongEnough => write!(f, "{early}: its head has waited long enough"),
            Decision::AtOnce => write!(f, "; due at once, valid until {until:.3}"),
        }
    }

    fn dropped(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self::Dropped { reason, room_ms, fits, alone_ms, instead, floor } = self else {
            return Ok(());
        };
        write!(f, "dropped ({reason}): {room_ms:.6} ms were left, ")?;
        match instead {
            Some((batch, tasks)) => {
                write!(f, "room for {fits} tasks; without it batch {batch} has {tasks} ")?;
                write!(f, "(floor {floor})")
            }
            None if *reason == DropReason::Accuracy.as_str() => {
                write!(f, "and no variant that is as accurate as it asks for ends in them")
            }
            None => write!(f, "it takes {alone_ms:.6} alone"),
        }
    }
}

impl Display for Cause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrival => "task came",
            Self::Grant => "after the grant",
            Self::SlotLost => "its GPU was lost",
            Self::Timer => "time passed",
        })
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::InBatch { number } => write!(f, "this is number {number}"),
            Self::GivenUp => f.write_str("this one given up"),
            Self::Behind => f.write_str("this one behind it"),
        }
    }
}

fn ids(tasks: &[u64]) -> String {
    let ids: Vec<String> = tasks.iter().map(u64::to_string).collect();
    ids.join(" ")
}
