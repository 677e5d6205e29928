//! `baton load`.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use baton_bench::load::{
    self, Ask, CacheCounts, Circumstances, Expect, Finished, Knee, LoadConfig, Message, Offered,
    Progress, Report, Search, Seen, ServerTimes, Tally, outcomes,
};
use baton_bench::machine::StealMeter;
use baton_bench::oip::{self, OipConfig, Protocol, SendDeadline, Url};
use baton_client::Operator;
use baton_core::Nanos;
use baton_sim::{ReplayFile, Scenario};
use baton_topo::{Clock, Cluster};

use crate::CommandResult;
use crate::args::{ExplainArgs, LoadArgs, SendDeadlineArg};
use crate::live::Live;
use crate::model::CONNECT;
use crate::output::{complain, load_cluster, locator, say, say_table};
use crate::process::{report_flag, stop_flag_behind};

/// Tasks per second of every model when no rate is given.
const RATE: f64 = 10.0;
/// How long the load lasts when nothing says so.
const SECONDS: f64 = 10.0;
/// How long a trial of a search lasts when nothing says so.
const TRIAL_SECONDS: f64 = 5.0;
/// No search goes beyond this many tasks per second.
const CEILING_RPS: f64 = 1e6;

/// A run and what it amounts to.
struct Run {
    /// Tasks per second, or tasks under way.
    load: f64,
    finished: Finished,
    report: Report,
    times: Option<ServerTimes>,
}

/// Exit status 0 if every task had its outcome and no answer was wrong; of a search, if it also found a rate that is the server's.
pub(crate) fn run(args: &LoadArgs) -> CommandResult {
    let cluster = args.config.as_deref().map(load_cluster).transpose()?;
    let offered = offered(cluster.as_ref(), args)?;
    let mut runner = Runner::new(cluster.as_ref(), args)?;
    if let Some(share) = args.goodput {
        return search(&mut runner, args, &offered, share);
    }
    let run = runner.run(offered, args.seed)?;
    if args.progress_json {
        say(&serde_json::to_string(&Message::Finished(run.finished.clone()))?)?;
    } else if args.json {
        say(&serde_json::to_string(&run.report)?)?;
    } else {
        say_table(&run.report.to_string())?;
    }
    let is_good = run.report.is_good();
    write_files(args, &[run], 0, None)?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Trials until the search is over, or a signal comes.
fn search(
    runner: &mut Runner<'_>,
    args: &LoadArgs,
    offered: &Offered,
    share: f64,
) -> CommandResult {
    let first_rps = offered.rate_rps().filter(|&rate| rate > 0.0);
    let first_rps =
        first_rps.ok_or("--goodput needs rates: give --rate, --scenario or --replay")?;
    let mut search = Search::new(share, args.resolution, first_rps, CEILING_RPS);
    let mut runs: Vec<Run> = Vec::new();
    while let Some(ask @ Ask { rate_rps, trial }) = search.next() {
        let run = runner.run(offered.at_rate(rate_rps), args.seed.wrapping_add(trial as u64))?;
        if !run.report.is_good() {
            say_table(&run.report.to_string())?;
            return Err("a task has no outcome or a wrong answer: the search ends".into());
        }
        if runner.stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err("the search was interrupted".into());
        }
        let seen = Seen::of(&run.finished.tallies, run.report.schedule_kept);
        let verdict = if seen.bad_rate <= 1.0 - share { "good" } else { "bad" };
        let verdict =
            if seen.schedule_kept { verdict } else { "not counted: the generator was late" };
        let (bad, error) = (seen.bad_rate * 100.0, seen.bad_error * 200.0);
        runner.live.line(format_args!("{rate_rps:.1}/s: {bad:.2} ± {error:.2} % bad, {verdict}"));
        search.saw(ask, seen);
        runs.push(run);
    }
    let knee = search.knee();
    let of_knee = runs.iter().rposition(|run| run.load <= knee.rate_rps).unwrap_or(0);
    if args.json {
        let mut json = serde_json::to_value(&runs[of_knee].report)?;
        json["goodput_search"] = serde_json::to_value(&knee)?;
        say(&json.to_string())?;
    } else {
        say_table(&runs[of_knee].report.to_string())?;
        say(&knee.to_string())?;
    }
    write_files(args, &runs, of_knee, Some(&knee))?;
    let is_found = knee.rate_rps > 0.0 && !knee.limited_by_generator;
    Ok(if is_found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_files(
    args: &LoadArgs,
    runs: &[Run],
    shown: usize,
    knee: Option<&Knee>,
) -> Result<(), Box<dyn Error>> {
    if let Some(path) = &args.csv {
        let mut lines: Vec<_> = runs.iter().map(|run| (run.load, &run.report, run.times)).collect();
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        load::write_csv(path, args.outstanding.is_some(), &lines)?;
    }
    if let Some(path) = &args.report {
        let run = &runs[shown];
        let mut all = Tally::default();
        run.finished.tallies.iter().for_each(|tally| all.merge(tally));
        let server = match (&args.url, &args.config) {
            (Some(url), _) => url.to_string(),
            (None, Some(file)) => file.display().to_string(),
            (None, None) => String::new(),
        };
        let title = format!("baton load: {server}");
        load::write_report(path, &title, &run.report, all.timeline.as_ref(), knee)?;
    }
    Ok(())
}

/// Offers loads, one after the other.
struct Runner<'a> {
    cluster: Option<&'a Cluster>,
    args: &'a LoadArgs,
    joining: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    report: Arc<AtomicBool>,
    live: Live,
}

impl<'a> Runner<'a> {
    fn new(cluster: Option<&'a Cluster>, args: &'a LoadArgs) -> Result<Self, Box<dyn Error>> {
        let joining = Arc::new(AtomicBool::new(args.url.is_none()));
        let (stop, report) = (stop_flag_behind(&joining, 1)?, report_flag()?);
        Ok(Self { cluster, args, joining, stop, report, live: Live::new() })
    }

    fn run(&mut self, offered: Offered, seed: u64) -> Result<Run, Box<dyn Error>> {
        let load =
            offered.rate_rps().unwrap_or_else(|| f64::from(self.args.outstanding.unwrap_or(0)));
        let before = self.cache_counts();
        let steal = StealMeter::start();
        let (finished, times) = match (&self.args.url, self.cluster) {
            (Some(url), _) => self.other_server(url, offered, seed)?,
            (None, Some(cluster)) => (self.cluster(cluster, offered, seed)?, None),
            (None, None) => return Err("give --config or --url".into()),
        };
        let steal_fraction = steal.fraction();
        let after = before.and_then(|before| Some((self.cache_counts()?, before)));
        let cold = after.map(|(after, before)| after.since(before, finished.seconds));
        let circumstances = Circumstances { steal_fraction, cold, ..Circumstances::default() };
        let report = Report::of_generators(std::slice::from_ref(&finished), circumstances);
        Ok(Run { load, finished, report, times })
    }

    /// What the scheduler has counted of its caches; `None` where there are none, or another server is measured.
    fn cache_counts(&self) -> Option<CacheCounts> {
        let cluster = self.cluster.filter(|_| self.args.url.is_none())?;
        cluster.backends.iter().find(|backend| backend.weights_cache.is_some())?;
        let ask = || -> Result<Option<CacheCounts>, Box<dyn Error>> {
            let scheduler = locator(cluster, self.args.scheduler)?;
            let mut operator = Operator::connect(&scheduler, cluster.fabric.tls.as_ref(), CONNECT)?;
            Ok(CacheCounts::of(&operator.status(CONNECT)?))
        };
        ask().unwrap_or_else(|error| {
            tracing::warn!(%error, "how many tasks come cold will not be known: the scheduler does not say it");
            None
        })
    }

    fn cluster(
        &mut self,
        cluster: &Cluster,
        offered: Offered,
        seed: u64,
    ) -> Result<Finished, Box<dyn Error>> {
        let args = self.args;
        let config = LoadConfig {
            scheduler: locator(cluster, args.scheduler)?,
            seconds: self.seconds(&offered),
            offered,
            seed,
            idle: args.idle,
            expect: Expect(args.expect.clone()),
            outcomes: args.outcomes.clone(),
            metrics: args.metrics,
            progress_every: Nanos::from_millis_f64(args.progress_every * 1e3),
            report: Arc::clone(&self.report),
            joining: Arc::clone(&self.joining),
        };
        let (live, mut before) = (&mut self.live, Progress::default());
        let show = |now: &Progress| show(args, live, &mut before, now);
        let finished = load::run(cluster, &config, Clock::start(), &self.stop, show);
        self.live.finish();
        Ok(finished?)
    }

    fn other_server(
        &mut self,
        url: &Url,
        offered: Offered,
        seed: u64,
    ) -> Result<(Finished, Option<ServerTimes>), Box<dyn Error>> {
        let args = self.args;
        let connections = if url.protocol == Protocol::Http { 128 } else { 4 };
        let config = OipConfig {
            url: url.clone(),
            ca: args.ca.clone(),
            token: args.token.clone(),
            json_tensors: args.json_tensors,
            seconds: self.seconds(&offered),
            offered,
            seed,
            within: args.deadline_ms.map(Nanos::from_millis_f64),
            send_deadline: args.send_deadline.map_or(SendDeadline::No, SendDeadlineArg::how),
            connections: args.connections.unwrap_or(connections) as usize,
            expect: Expect(args.expect.clone()),
            shapes: args.shapes.clone(),
            progress_every: Nanos::from_millis_f64(args.progress_every * 1e3),
        };
        let (cluster, live, mut before) = (self.cluster, &mut self.live, Progress::default());
        let show = |now: &Progress| show(args, live, &mut before, now);
        let finished = oip::run(cluster, &config, Clock::start(), &self.stop, show);
        self.live.finish();
        Ok(finished?)
    }

    fn seconds(&self, offered: &Offered) -> f64 {
        let lasts = || match self.args.goodput {
            Some(_) => TRIAL_SECONDS,
            None => offered.lasts().map_or(SECONDS, |lasts| lasts.as_millis_f64() / 1e3),
        };
        self.args.seconds.unwrap_or_else(lasts)
    }
}

impl SendDeadlineArg {
    const fn how(self) -> SendDeadline {
        match self {
            Self::Header => SendDeadline::Header,
            Self::Parameter => SendDeadline::Parameter,
        }
    }
}

/// Where variants answer, with their accuracy since the line before.
fn show(args: &LoadArgs, live: &mut Live, before: &mut Progress, progress: &Progress) {
    let accuracy = progress.accuracy_since(&std::mem::replace(before, *progress));
    if !args.progress_json {
        let said = accuracy.map_or_else(String::new, |of| format!("  accuracy {of:.2} %"));
        live.progress(format_args!("{progress}{said}"));
    } else if let Err(error) = tell(progress) {
        complain(&format!("progress could not be written: {error}"));
    }
}

fn offered(cluster: Option<&Cluster>, args: &LoadArgs) -> Result<Offered, Box<dyn Error>> {
    if let Some(file) = &args.scenario {
        let scenario = Arc::new(Scenario::load(file)?);
        let of_file = || scenario.replay.as_ref().map(|replay| replay.rate_rps());
        let rate = args.rps.or_else(of_file).unwrap_or(RATE * scenario.models.len() as f64);
        return Ok(Offered::Scenario(scenario, rate));
    }
    let of_cluster = || cluster.iter().flat_map(|cluster| &cluster.models);
    let models: Vec<String> = match (args.rates.is_empty(), args.models.is_empty()) {
        (false, _) => args.rates.iter().map(|(name, _)| name.clone()).collect(),
        (true, false) => args.models.clone(),
        (true, true) => of_cluster().map(|model| model.name.clone()).collect(),
    };
    if models.is_empty() {
        return Err("which models? Give --rate MODEL=RATE or --model MODEL, once for each".into());
    }
    if let Some(file) = &args.replay {
        let names: Vec<&str> = models.iter().map(String::as_str).collect();
        let file = ReplayFile { path: file.clone(), minutes: args.minutes };
        let replay = Arc::new(file.load(&names)?);
        let rate = args.rps.unwrap_or_else(|| args.speed.unwrap_or(1.0) * replay.rate_rps());
        return Ok(Offered::Replay(models, replay, rate));
    }
    if args.rps.is_some() {
        return Err("--rps is for --scenario and --replay; give --rate MODEL=RATE".into());
    }
    if let Some(outstanding) = args.outstanding {
        return Ok(Offered::Outstanding(models, outstanding));
    }
    let all = || models.into_iter().map(|name| (name, RATE)).collect();
    Ok(Offered::Rates(if args.rates.is_empty() { all() } else { args.rates.clone() }))
}

fn tell(progress: &Progress) -> Result<(), Box<dyn Error>> {
    Ok(say(&serde_json::to_string(&Message::Progress(*progress))?)?)
}

/// `baton explain`: what became of a task of a load that is over.
pub(crate) fn explain(args: &ExplainArgs) -> CommandResult {
    let record = outcomes::find(&args.outcomes, args.task)?;
    say(&if args.json { serde_json::to_string(&record)? } else { record.to_string() })?;
    Ok(ExitCode::SUCCESS)
}
