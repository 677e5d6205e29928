//! `baton load` among processes: what it says of a gateway, and of a server that this test holds in its hands.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::{fs, thread};

use serde_json::{Value, json};
use support::{Cluster, Folder, run};

fn load(args: &[&str]) -> (bool, Value) {
    let output = run(&[&["load"], args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let report = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.success(), report)
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"))
}

#[test]
fn a_gateway_is_measured_over_each_protocol_and_its_answers_are_checked() {
    let cluster = Cluster::quick_and_slow("load-gateway");
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&[]);
    let (http, grpc) = (format!("http://{addr}"), format!("grpc://{addr}"));
    for (url, more, transport) in [
        (&http, &["--json-tensors", "--send-deadline", "header"][..], "http, json"),
        (&http, &["--send-deadline", "parameter"], "http, binary"),
        (&grpc, &["--send-deadline", "header"], "grpc"),
    ] {
        let args = ["--url", url, "--rate", "quick=40", "--seconds", "1", "--deadline-ms", "20000"];
        let (is_good, report) = load(&[&args[..], more].concat());
        assert!(is_good, "{report}");
        assert_eq!(
            (&report["transport"], &report["engines"]),
            (&json!(transport), &json!(["baton"]))
        );
        assert!(number(&report, "submitted") > 15 && number(&report, "completed") > 0, "{report}");
        assert_eq!(
            (number(&report, "wrong_answers"), number(&report, "unchecked_answers")),
            (0, 0)
        );
    }
    let args = ["--url", &grpc, "--model", "quick", "--outstanding", "2", "--seconds", "1"];
    let folder = Folder::new("load-files");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (csv, page) = (file("runs.csv"), file("run.html"));
    let files = ["--deadline-ms", "20000", "--csv", &csv, "--report", &page];
    let (is_good, report) = load(&[&args[..], &files].concat());
    assert!(is_good && number(&report, "completed") == number(&report, "submitted"), "{report}");
    let csv = fs::read_to_string(csv).unwrap();
    let infer_us = csv.lines().nth(1).unwrap().split(',').nth(6).unwrap();
    assert!(csv.starts_with("Concurrency,Inferences/Second,") && infer_us != "0", "{csv}");
    assert!(fs::read_to_string(page).unwrap().contains("tasks per second"));
}

#[test]
fn what_a_gateway_sheds_is_a_result_with_its_reason() {
    let cluster = Cluster::quick_and_slow("load-shed");
    let _backend = cluster.backend("b");
    let (_gateway, addr) = cluster.gateway(&[]);
    for url in [format!("http://{addr}"), format!("grpc://{addr}")] {
        let args = ["--url", &url, "--rate", "slow=60", "--seconds", "1", "--deadline-ms", "300"];
        let (is_good, report) = load(&[&args[..], &["--send-deadline", "header"]].concat());
        assert!(is_good, "an error is a result: {report}");
        assert_eq!(number(&report, "completed"), 0, "{report}");
        assert_eq!(
            number(&report, "submitted"),
            number(&report, "dropped") + number(&report, "failed")
        );
        let reasons = report["models"][0]["dropped_by_reason"].as_object().unwrap();
        assert!(!reasons.is_empty() && report["bad_rate"] == 1.0, "{report}");
    }
    let args = ["--url", "http://127.0.0.1:1", "--rate", "m=1", "--deadline-ms", "9"];
    let gone = run(&[&["load"], &args[..]].concat());
    let words = String::from_utf8_lossy(&gone.stderr);
    assert!(
        !gone.status.success()
            && words.contains("no metadata of model m (connect_failed); nothing answers there"),
        "{words}"
    );
}

/// A server by hand: `m` takes two numbers. What a request gets depends on how many have come.
struct Server {
    addr: String,
}

impl Server {
    fn start(answer: fn(&Asked) -> &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Asked::default());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let asked = Arc::clone(&asked);
                thread::spawn(move || serve(stream.unwrap(), &asked, answer));
            }
        });
        Self { addr: format!("http://{addr}") }
    }
}

/// How many inferences were asked for.
#[derive(Default)]
struct Asked {
    count: Mutex<u64>,
    more: Condvar,
}

impl Asked {
    /// Counts one, and returns its number.
    fn one(&self) -> u64 {
        let mut count = self.count.lock().unwrap();
        *count += 1;
        self.more.notify_all();
        *count
    }

    /// Waits until this one has come.
    fn await_number(&self, number: u64) {
        let count = self.count.lock().unwrap();
        drop(self.more.wait_while(count, |count| *count < number).unwrap());
    }
}

const METADATA: &str = r#"{"name":"m","platform":"by hand","inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[{"name":"y","datatype":"FP32","shape":[-1,1]}]}"#;
const ONE: &str =
    r#"200 OK|{"outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[1.0]}]}"#;

/// One connection.
fn serve(stream: TcpStream, asked: &Asked, answer: fn(&Asked) -> &'static str) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            match line.to_ascii_lowercase().trim().strip_prefix("content-length: ") {
                Some(bytes) => length = bytes.parse().unwrap(),
                None if line.trim().is_empty() => break,
                None => {}
            }
        }
        stream.read_exact(&mut vec![0; length]).unwrap();
        let said = match first.split(' ').nth(1).unwrap() {
            "/v2/models/m/infer" => answer(asked).to_owned(),
            "/v2/models/m" => format!("200 OK|{METADATA}"),
            _ => "404 Not Found|{}".to_owned(),
        };
        let (status, body) = said.split_once('|').unwrap();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
    }
}

/// It holds a hundred requests until the last of them has come. A generator that waited for answers would never send
/// them all, and one that counted from when it sends would miss what they waited for a connection.
#[test]
fn a_server_that_stands_still_makes_every_task_late_that_was_due_meanwhile() {
    let server = Server::start(|asked| {
        let number = asked.one();
        if (101..=200).contains(&number) {
            asked.await_number(200);
        }
        ONE
    });
    let args = ["--url", &server.addr, "--rate", "m=200", "--seconds", "2", "--deadline-ms", "60"];
    let (is_good, report) = load(&args);
    assert!(is_good && number(&report, "completed") == number(&report, "submitted"), "{report}");
    // Half a second of tasks: one in eight of all waits for more than a quarter of a second.
    assert!(number(&report, "late") >= 70, "{report}");
    assert!(report["p90_ms"].as_f64().unwrap() > 150.0, "{report}");
    assert!(report["p999_ms"].as_f64().unwrap() > 350.0, "{report}");
    assert_eq!(number(&report, "unchecked_answers"), number(&report, "completed"));
}

#[test]
fn answers_are_checked_by_a_file_and_a_wrong_one_fails_the_run() {
    let server = Server::start(|asked| {
        asked.one();
        ONE
    });
    let folder = Folder::new("load-expect");
    let examples = |answer: f64| {
        let data = json!({ "data": [{ "x": [1, 2] }], "validation_data": [{ "y": [answer] }] });
        folder.write(&format!("{answer}.json"), &data.to_string())
    };
    let args =
        ["--url", &server.addr, "--rate", "m=50", "--seconds", "0.5", "--deadline-ms", "900"];
    let (is_good, report) = load(&[&args[..], &["--expect", &examples(1.0)]].concat());
    assert!(is_good && number(&report, "wrong_answers") == 0, "{report}");
    assert_eq!(number(&report, "unchecked_answers"), 0);
    let (is_good, report) =
        load(&[&args[..], &["--expect", &format!("m={}", examples(2.0))]].concat());
    assert!(
        !is_good && number(&report, "wrong_answers") == number(&report, "completed"),
        "{report}"
    );
}

#[test]
fn a_server_that_refuses_everything_has_no_goodput() {
    let server = Server::start(|_| "429 Too Many Requests|{\"error\":\"full\"}");
    let args =
        ["--url", &server.addr, "--rate", "m=60", "--seconds", "0.2", "--deadline-ms", "900"];
    let (is_good, report) = load(&[&args[..], &["--goodput", "0.99"]].concat());
    let search = &report["goodput_search"];
    assert!(!is_good && search["rate_rps"] == 0.0 && search["share"] == 0.99, "{report}");
    assert!(search["surely_bad_rps"].as_f64().unwrap() <= 60.0, "{search}");
    let first = search["points"].as_array().unwrap().last().unwrap();
    assert_eq!((&first["rate_rps"], &first["bad_rate"]), (&json!(60.0), &json!(1.0)), "{search}");
    let args =
        ["--url", &server.addr, "--rate", "m=60", "--seconds", "0.2", "--deadline-ms", "900"];
    let (_, report) = load(&args);
    assert!(report["models"][0]["dropped_by_reason"]["http_429"].as_u64() > Some(0), "{report}");
}

#[test]
fn arrivals_come_from_a_file() {
    let server = Server::start(|asked| {
        asked.one();
        ONE
    });
    let folder = Folder::new("load-replay");
    let lines: String =
        (0..40).map(|i| format!("{},m,{}\n", f64::from(i) * 0.02, 900 + i)).collect();
    let file = folder.write("arrivals.csv", &lines);
    let args = ["--url", &server.addr, "--replay", &file, "--model", "m", "--deadline-ms", "900"];
    let (is_good, report) = load(&args);
    assert!(is_good, "{report}");
    // One lap, as the file says.
    assert_eq!(number(&report, "submitted"), 40);
    assert!((report["seconds"].as_f64().unwrap() - 0.8).abs() < 0.01, "{report}");
}

/// Eight models of three pages each on two slots that hold two each.
fn caches() -> String {
    let mut text = String::from("[network]\njitter_us = 2000\nresponse_us = 10000\n");
    for name in ["a", "b"] {
        text += &format!("[[backend]]\nname = \"{name}\"\nweights_cache_mib = 150\n");
    }
    for model in 0..8 {
        text += &format!(
            "[[model]]\nname = \"m{model}\"\nalpha_ms = 0.2\nbeta_ms = 1\nslo_ms = 500\n\
             batch_max = 4\ninput_bytes = 64\nweights_mib = 48\nload_ms = 5\n"
        );
    }
    text
}

#[test]
fn minutes_of_functions_are_the_same_load_in_processes_and_in_the_simulator() {
    let cluster = Cluster::of(Folder::new("load-functions"), &caches());
    let _backends = ["a", "b"].map(|name| cluster.backend(name));
    let file = cluster.folder().path().join("functions.csv").display().to_string();
    let drawn = ["sim", "functions", "--functions", "100", "--rate", "0.5", "--minutes", "20"];
    let drawn = run(&[&drawn[..], &["--out", &file]].concat());
    assert!(drawn.status.success(), "{drawn:?}");
    // Ten minutes in five seconds.
    let replay = ["--replay", &file, "--minutes", "10:10", "--speed", "120"];
    let of_cluster = ["--config", cluster.file(), "--scheduler", cluster.addr()];
    let (is_good, report) = load(&[&of_cluster[..], &replay].concat());
    assert!(is_good && number(&report, "completed") > 0, "{report}");
    assert_eq!(report["seconds"].as_f64(), Some(5.0 - 1e-6), "not even a moment longer: {report}");
    let simulated = ["sim", "run", "--cluster", cluster.file(), "--seconds", "5", "--warmup", "0"];
    let more = ["--seed", "1", "--policy", "baton", "--json"];
    let simulated = run(&[&simulated[..], &replay, &more].concat());
    let simulated: Value = serde_json::from_slice(&simulated.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&simulated.stderr)));
    let submitted = |report: &Value| -> Vec<(String, u64)> {
        let models = report["models"].as_array().unwrap().iter();
        let of = |model: &Value| (model["name"].to_string(), number(model, "submitted"));
        models.map(of).collect()
    };
    assert_eq!(submitted(&report), submitted(&simulated));
    assert!(submitted(&report).iter().all(|(_, tasks)| *tasks > 0), "{report}");
    assert!(simulated["loads_per_s"].as_f64() > Some(0.0), "its slots have the file's memory");
    for key in ["cold_rps", "cold_satisfied", "loads_per_s"] {
        assert!(report[key].as_f64() > Some(0.0), "{key}: {report}");
    }
}

/// A replay at its own rate, with another objective than the cluster's, of which every second task asks for more than there is.
#[test]
fn a_scenario_says_how_fast_by_when_and_how_accurate() {
    let variant = |name: &str, accuracy: u32, alpha_ms: f64| {
        format!(
            "[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\nalpha_ms = {alpha_ms}\nbeta_ms = 1\n"
        )
    };
    let variants = variant("small", 70, 0.1) + &variant("large", 80, 0.2);
    let model = |keys: &str| format!("[[model]]\nname = \"m\"\nbatch_max = 4\n{keys}\n{variants}");
    let cluster = model("slo_ms = 9000\ninput_bytes = 64") + "[[backend]]\nname = \"b\"\n";
    let cluster = Cluster::of(Folder::new("load-scenario"), &cluster);
    let _backend = cluster.backend("b");
    let lines: String = (0..40).map(|i| format!("{},m\n", f64::from(i) * 0.02)).collect();
    cluster.folder().write("arrivals.csv", &lines);
    let head =
        "gpus = 1\nduration_s = 0.8\narrival = { process = \"replay\", file = \"arrivals.csv\" }\n";
    let keys = "slo_ms = 5000\naccuracy_min = 90\naccuracy_min_share = 0.5";
    let file = cluster.folder().write("scenario.toml", &(head.to_owned() + &model(keys)));
    let args = ["--config", cluster.file(), "--scheduler", cluster.addr(), "--scenario", &file];
    let (is_good, report) = load(&args);
    assert!(is_good, "{report}");
    assert_eq!((number(&report, "submitted"), number(&report, "completed")), (40, 20), "{report}");
    let model = &report["models"][0];
    assert_eq!(model["dropped_by_reason"], json!({ "accuracy": 20 }));
    assert_eq!(model["slo_ms"], json!(5000.0));
}
