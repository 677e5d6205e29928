//! The cluster file, from the outside: a good one is understood. Mistakes:
//! `cluster_file_mistakes.rs`.
mod checking;

use std::path::{Path, PathBuf};

use baton_topo::{
    CardsSpec, Cluster, EngineSpec, EtcdIdentity, EtcdSpec, EtcdTlsSpec, FabricSpec, Idle,
    OnnxPlace, ProfileFile, ReconnectSpec, TlsSpec, TransportChoice, VerbsConfig,
};
use baton_types::{Nanos, Policy, QuotaLimits, RateLimit, SubclusterId};
use checking::{check, lines, model_with};

fn good(text: &str) -> Cluster {
    check(text).cluster.unwrap_or_else(|problems| panic!("{:#?}", lines(&problems)))
}

fn digits_onnx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx")
}

#[test]
fn defaults_fill_in_what_a_minimal_file_leaves_out() {
    let cluster = good(&model_with(""));
    assert_eq!(cluster.scheduler.listen.to_string(), "127.0.0.1:7700");
    assert_eq!(cluster.scheduler.model_threads, 1);
    assert_eq!(cluster.scheduler.idle, Idle::Park);
    assert_eq!(cluster.scheduler.policy, Policy::Baton);
    assert_eq!(cluster.scheduler.member_timeout, Nanos::from_millis(1_000));
    assert_eq!(cluster.network.ctrl, Nanos::from_micros(300));
    assert_eq!(cluster.frontend.slots_per_model, 256);
    assert_eq!(cluster.reconnect, ReconnectSpec::default());
    assert_eq!(cluster.subclusters, ["default"]);
    let model = &cluster.models[0];
    assert_eq!(model.profile.batch_max(), 64);
    assert_eq!(model.profile.latency(2), Nanos::from_millis(7));
    assert_eq!((model.input_bytes, model.output_bytes), (150_528, 8));
    assert_eq!(model.engine, EngineSpec::Emulated { jitter: 0.0 });
    assert_eq!((cluster.backends[0].gpus, cluster.backends[0].credit_bytes), (1, 1 << 20));
}

#[test]
fn a_profile_file_says_how_long_batches_take() {
    let profile = ProfileFile {
        model: "toy".into(),
        model_bytes: 0,
        engine: "emulated".into(),
        device: "cpu".into(),
        is_fake: false,
        alpha_ms: 2.0,
        beta_ms: 1.0,
        fit_error: 0.0,
        latency_ms: vec![3.0, 5.0, 7.0],
        measured: Vec::new(),
    };
    let path = std::env::temp_dir().join(format!("baton-profile-{}.toml", std::process::id()));
    std::fs::write(&path, profile.text().unwrap()).unwrap();
    let key = format!("profile = \"{}\"\n", path.display());
    let cluster = good(&model_with("").replace("alpha_ms = 1\nbeta_ms = 5\n", &key));
    std::fs::remove_file(&path).unwrap();
    let profile = &cluster.models[0].profile;
    assert_eq!(
        (1..=3).map(|b| profile.latency(b)).collect::<Vec<_>>(),
        [3, 5, 7].map(Nanos::from_millis)
    );
    assert_eq!(profile.batch_max(), 3);
}

#[test]
fn the_fabric_is_auto_unless_told_otherwise() {
    let fabric = good(&model_with("")).fabric;
    assert_eq!(fabric, FabricSpec::default());
    assert_eq!(fabric.transport, TransportChoice::Auto);
    let text = "\
[network]
transport = \"rdma\"
[rdma]
device = \"mlx5_0\"
port = 2
gid_index = 3
mtu = 2048
traffic_class = 96
service_level = 4
read_depth = 8
peers = 64
slice_bytes = 32768
read_timeout_ms = 20
ack_timeout = 12
retries = 3
";
    let expected = VerbsConfig {
        device: Some("mlx5_0".into()),
        port: 2,
        gid_index: Some(3),
        mtu: Some(2_048),
        traffic_class: 96,
        service_level: 4,
        read_depth: 8,
        peers: 64,
        slice_bytes: 32_768,
        read_timeout: Nanos::from_millis(20),
        ack_timeout: 12,
        retries: 3,
    };
    let fabric = good(&(model_with("") + text)).fabric;
    assert_eq!(fabric, FabricSpec { transport: TransportChoice::Rdma, verbs: expected, tls: None });
}

#[test]
fn etcd_is_understood_with_its_defaults() {
    let text = "[scheduler]\netcd = [\"http://etcd-0.example:2379\", \"http://[::1]:2379\"]\n";
    assert_eq!(good(&model_with("")).scheduler.etcd, None);
    let expected = EtcdSpec {
        endpoints: vec!["http://etcd-0.example:2379".into(), "http://[::1]:2379".into()],
        prefix: "/baton/default".into(),
        lease_ttl_s: 2,
        tls: None,
    };
    let cluster = good(&(model_with("") + text));
    assert!(cluster.to_string().contains("leader by etcd at http://etcd-0.example:2379, http://"));
    assert_eq!(cluster.scheduler.etcd, Some(expected.clone()));
    let chosen = good(&(model_with("") + text + "etcd_prefix = \"/b/east/\"\nlease_ttl_s = 5\n"));
    let expected = EtcdSpec { prefix: "/b/east".into(), lease_ttl_s: 5, ..expected };
    assert_eq!(chosen.scheduler.etcd, Some(expected));
}

#[test]
fn etcd_over_tls_is_understood() {
    let text = "[scheduler]\netcd = [\"https://a:2379\"]\netcd_ca = \"Cargo.toml\"\n";
    let cluster = good(&(model_with("") + text));
    let anonymous = EtcdTlsSpec { ca: "Cargo.toml".into(), identity: None };
    assert!(cluster.to_string().contains("Cargo.toml, without a certificate of its own"));
    assert_eq!(cluster.scheduler.etcd.unwrap().tls, Some(anonymous.clone()));
    let own = "etcd_cert = \"src/lib.rs\"\netcd_key = \"src/zoo.rs\"\n";
    let cluster = good(&(model_with("") + text + own));
    assert!(
        cluster.to_string().contains("etcd over TLS, by the authorities in Cargo.toml, as src")
    );
    let own = EtcdIdentity { cert: "src/lib.rs".into(), key: "src/zoo.rs".into() };
    let known = EtcdTlsSpec { identity: Some(own), ..anonymous };
    assert_eq!(cluster.scheduler.etcd.unwrap().tls, Some(known));
}

/// What is in the files is not looked at here, so any file will do.
#[test]
fn tls_is_understood_and_open_roles_are_warned_of() {
    let text = "[tls]\nca = \"Cargo.toml\"\ncert = \"src/lib.rs\"\nkey = \"src/zoo.rs\"\n";
    let lists = "schedulers = [\"s.example\"]\nbackends = [\"*.gpu.example\", \"b\"]\n";
    let checked = check(&(model_with("") + text + lists));
    let warnings = lines(&checked.warnings);
    assert_eq!(
        warnings,
        [
            "c.toml:9: tls.frontends: is missing: any certificate of the authority may act in this role; fix: list the names that may"
        ]
    );
    let expected = TlsSpec {
        schedulers: Some(vec!["s.example".into()]),
        backends: Some(vec!["*.gpu.example".into(), "b".into()]),
        ..TlsSpec::new("Cargo.toml".into(), "src/lib.rs".into(), "src/zoo.rs".into())
    };
    assert_eq!(checked.cluster.unwrap().fabric.tls, Some(expected));
}

#[test]
fn a_whole_file_is_understood() {
    let file = digits_onnx();
    let text = format!(
        r#"
[scheduler]
listen = "0.0.0.0:1"
model_threads = 2
idle = "spin"
cores = [0, 1, 2, 3]
policy = "eager"
metrics = "127.0.0.1:8002"
member_timeout_ms = 500
[network]
ctrl_us = 0.5
[reconnect]
first_ms = 20
hold_ms = 3_000
[frontend]
slots_per_model = 8
lease_grace_ms = 50
[[model]]
name = "table"
latency_ms = [6.25, 7, 7]
slo_ms = 1_000.5
jitter = 0.1
queue_capacity = 0x10
expected_rps = 1500
max_rps = 2_000
frontend_max_rps = 12.5
subcluster = "gpu"
[[model]]
name = "digits"
engine = "onnx"
file = "{}"
input_shape = [1, 8, 8]
output_bytes = 40
alpha_ms = 0.05
beta_ms = 0.3
slo_ms = 50
batch_max = 32
subcluster = "cpu"
[[backend]]
name = "c"
model_memory_mib = 1536
subcluster = "cpu"
idle = "yield"
metrics = "[::1]:0"
credit_bytes = 0
[[backend]]
name = "g"
gpus = 4
cores = [1]
"#,
        file.display()
    );
    let cluster = good(&text);
    assert_eq!(cluster.scheduler.cores, [0, 1, 2, 3]);
    let metrics =
        [cluster.scheduler.metrics, cluster.backends[0].metrics, cluster.backends[1].metrics];
    let metrics = metrics.map(|addr| addr.map(|addr| addr.to_string()));
    assert_eq!(metrics, [Some("127.0.0.1:8002".into()), Some("[::1]:0".into()), None]);
    assert_eq!(cluster.network.ctrl, Nanos(500));
    let (first, hold) = (Nanos::from_millis(20), Nanos::from_millis(3_000));
    assert_eq!(cluster.reconnect, ReconnectSpec { first, hold, ..ReconnectSpec::default() });
    assert_eq!(cluster.subclusters, ["gpu", "cpu"]);
    let [table, digits] = &cluster.models[..] else { panic!("two models") };
    assert_eq!(table.profile.table(), [6_250_000, 7_000_000, 7_000_000].map(Nanos));
    assert_eq!(table.slo, Nanos(1_000_500_000));
    assert_eq!((table.queue_capacity, table.expected_rps), (16, Some(1_500.0)));
    assert_eq!(table.quota.model, Some(RateLimit::per_second(2_000.0)));
    assert_eq!(table.quota.frontend, Some(RateLimit::per_second(12.5)));
    assert_eq!(digits.quota, QuotaLimits::default());
    assert_eq!((digits.input_bytes, digits.output_bytes), (256, 40));
    let EngineSpec::Onnx { file: read, signature, layout, is_measured, place, .. } = &digits.engine
    else {
        panic!("digits is an ONNX model")
    };
    assert_eq!((read, layout.is_plain(), *is_measured), (&file, true, false));
    assert_eq!(*place, OnnxPlace::CPU);
    assert_eq!(signature.input.to_string(), "image f32[1, 8, 8]");
    assert_eq!(signature.output.to_string(), "logits f32[10]");
    assert_eq!(cluster.backends[0].subcluster, SubclusterId(1));
    let memory = [0, 1].map(|at| cluster.backends[at].model_memory);
    assert_eq!(memory, [Some(1_536 << 20), None], "absent is without a bound");
    assert_eq!(cluster.backends[1].subcluster, SubclusterId(0));
    assert_eq!(cluster.backends[1].cores, [1]);
}

#[test]
fn a_name_a_file_and_an_objective_make_a_model() {
    let (file, backend) = (digits_onnx(), "[[backend]]\nname = \"b\"\n");
    let file = file.display();
    let model = format!("[[model]]\nname = \"d\"\nfile = \"{file}\"\nslo_ms = 20\n");
    let cluster = good(&format!("{model}{backend}"));
    let digits = &cluster.models[0];
    assert!(digits.engine.is_measured());
    assert_eq!((digits.input_bytes, digits.output_bytes), (256, 40));
    assert_eq!(digits.profile.table(), [Nanos::from_millis(5); 16]);
    let summary = cluster.to_string();
    let says = "ℓ(1) … ℓ(16) measured by its backends, image f32[1, 8, 8] → logits f32[10]";
    assert!(summary.contains(says), "{summary}");
    let alone = good(&format!("{model}batch_max = 1\n{backend}")).to_string();
    assert!(alone.contains(", ℓ(1) measured by its backends, image"), "{alone}");
    assert!(summary.contains(&format!("  model d (onnx {file}): SLO")), "{summary}");
    let on_a_gpu = good(&format!("{model}device = \"cuda:1\"\n{backend}")).to_string();
    let named = format!("  model d (onnx {file} on cuda:1): SLO");
    assert!(on_a_gpu.contains(&named), "{on_a_gpu}");
}

#[test]
fn the_summary_says_what_was_understood() {
    let text = model_with("input_bytes = 64\nbatch_max = 4") + "gpus = 2\n";
    let expected = "\
scheduler at 127.0.0.1:7700: policy baton, prefer latency, 1 ModelThread(s)
planned delays: 0.3 ms per plan, 0.02 ms per input, 0.5 ms per answer; jitter 0.5 ms
inputs over: auto
connections: not encrypted, peers not authenticated
frontends: 256 slots per model
sub-cluster default: 2 GPU slots: b (2)
  model m (emulated): SLO 25 ms, ℓ(1) = 6 ms … ℓ(4) = 9 ms, 64 → 8 bytes
";
    assert_eq!(good(&text).to_string(), expected);
    let bounded = good(&(text.clone() + "model_memory_mib = 512\n")).to_string();
    assert!(bounded.contains("\n  models on each GPU slot of b: 512 MiB at most\n"), "{bounded}");
    let scraped = format!("[scheduler]\nmetrics = \"127.0.0.1:1\"\n{text}metrics = \"[::1]:2\"\n");
    let scraped = good(&scraped).to_string();
    assert!(scraped.contains("\nmetrics: scheduler at 127.0.0.1:1, b at [::1]:2\n"), "{scraped}");
    let gateway = "[gateway]\ncert = \"g.pem\"\nkey = \"g.key\"\nshared_memory_mib = 64\n\
        [[gateway.token]]\nname = \"t\"\nfile = \"t.token\"\nmax_rps = 5\n\
        [[gateway.token]]\nname = \"u\"\nfile = \"u.token\"\n";
    let guarded = good(&(text.clone() + gateway)).to_string();
    let line = "g.pem; tokens of t (5 tasks/s), u; 64 MiB of shared memory\nsub-cluster";
    assert!(guarded.contains("\ngateways: TLS, as ") && guarded.contains(line), "{guarded}");
    let limited = model_with("max_rps = 500\nfrontend_max_rps = 0.5");
    let last = "bytes, at most 500/s, at most 0.5/s of each frontend\n";
    assert!(good(&limited).to_string().ends_with(last));
}

#[test]
fn a_backend_has_a_gpu_slot_for_each_device_that_it_names() {
    let cards = |keys: &str| {
        let cluster = good(&(model_with("") + keys + "\n"));
        let backend = &cluster.backends[0];
        (backend.gpus, backend.cards.clone())
    };
    assert_eq!(cards(""), (1, CardsSpec::default()));
    let (gpus, named) = cards("devices = [\"GPU-1a\", \"GPU-2b\"]\nlock_clocks = true");
    assert_eq!(
        (gpus, named.lock_clocks, named.devices),
        (2, true, vec!["GPU-1a".into(), "GPU-2b".into()])
    );
    assert_eq!(cards("devices = [\"MIG-1a\"]\ngpus = 1").0, 1);
}

#[test]
fn variants_are_read_in_order_and_the_cheapest_stands_for_the_model() {
    let variant = |name: &str, accuracy: f64, alpha: f64| {
        format!(
            "[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\nalpha_ms = {alpha}\nbeta_ms = 1\n"
        )
    };
    let text = format!(
        "[[model]]\nname = \"m\"\nslo_ms = 36\nbatch_max = 16\n{}{}[[backend]]\nname = \"b\"\n",
        variant("small", 73.82, 0.4),
        variant("large", 80.16, 1.74)
    );
    let cluster = check(&text).cluster.unwrap();
    let model = &cluster.models[0];
    let variants = model.checked_variants().unwrap();
    let accuracies: Vec<u32> = variants.all().iter().map(|variant| variant.accuracy).collect();
    assert_eq!(accuracies, [73_820, 80_160]);
    assert_eq!(model.profile, variants.all()[0].profile);
    assert_eq!((model.profile.batch_max(), model.variant_count()), (16, 2));
    assert_eq!(model.profile_of(1).latency(1), Nanos::from_micros(2_740));
    let shown = cluster.to_string();
    assert!(shown.contains("variant large: 80.16 %, ℓ(1) = 2.74 ms … ℓ(16) = 28.84 ms"), "{shown}");
}

/// Two variants of the digits supernet, each with these keys.
fn digits_super(keys: [&str; 2]) -> String {
    let file = digits_onnx().with_file_name("digits-super.onnx");
    let file = file.to_string_lossy().replace("examples/digits/", "examples/digits-super/");
    let [small, large] = keys;
    format!(
        "[[model]]\nname = \"m\"\nslo_ms = 36\nengine = \"onnx\"\nfile = \"{file}\"\nbatch_max = 2\n\
         [[model.variant]]\nname = \"small\"\naccuracy = 70\n{small}\n\
         [[model.variant]]\nname = \"large\"\naccuracy = 80\n{large}\n[[backend]]\nname = \"b\"\n"
    )
}

#[test]
fn a_file_that_names_its_variants_says_what_to_write_of_them() {
    let text = digits_super(["", ""]);
    let (head, _) = text.split_once("[[model.variant]]").unwrap();
    let backend = "[[backend]]\nname = \"b\"\n";
    let refusals = check(&format!("{head}{backend}")).cluster.unwrap_err();
    let [refusal] = &refusals[..] else { panic!("{refusals:#?}") };
    let (_, key) = refusal.fix.split_once("describe them: ").unwrap();
    assert!(key.starts_with("variant = [{ name = \"w4-d1\", accuracy = 84.37 }, "), "{key}");
    let checked = check(&format!("{head}{key}\n{backend}"));
    assert!(checked.cluster.is_ok() && checked.warnings.is_empty(), "{key}");
}

/// The file selects by place, whatever the tables are called.
#[test]
fn tables_that_are_not_the_files_variants_are_warned_of() {
    let warnings = |text: &str| -> Vec<String> {
        check(text).warnings.iter().map(ToString::to_string).collect()
    };
    let two = warnings(&digits_super(["", ""]));
    let own = "w4-d1, w6-d1, w6-d2, w12-d2, w12-d3, w24-d2, w24-d3";
    let what = format!(
        "variant: the file selects its variants by place, and they are {own}; fix: list all"
    );
    assert!(matches!(&two[..], [one] if one.contains(&what)), "{two:#?}");
    let all = |names: &[&str]| {
        let head = digits_super(["", ""]);
        let (head, _) = head.split_once("[[model.variant]]").unwrap();
        let table = |(at, name): (usize, &&str)| {
            format!("[[model.variant]]\nname = \"{name}\"\naccuracy = 8{at}\n")
        };
        let tables: String = names.iter().enumerate().map(table).collect();
        warnings(&format!("{head}{tables}[[backend]]\nname = \"b\"\n"))
    };
    let mut names: Vec<&str> = own.split(", ").collect();
    assert_eq!(all(&names), Vec::<String>::new());
    names[0] = "smallest";
    assert_eq!(all(&names), Vec::<String>::new(), "a name of one's own");
    names.swap(5, 6);
    assert_eq!(all(&names).len(), 1);
}

#[test]
fn accuracies_that_are_fractions_are_warned_of() {
    let warnings = |most: f64| {
        let variant = |name: &str, accuracy: f64, alpha: f64| {
            format!(
                "[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\nalpha_ms = {alpha}\nbeta_ms = 1\n"
            )
        };
        let (a, b) = (variant("a", 0.7, 1.0), variant("b", most, 2.0));
        let head = "[[model]]\nname = \"m\"\nslo_ms = 360\n";
        check(&format!("{head}{a}{b}[[backend]]\nname = \"b\"\n")).warnings
    };
    assert_eq!(warnings(1.1), []);
    assert!(warnings(0.8)[0].to_string().contains("fix: give per cent: 80.2 instead of 0.802"));
}

#[test]
fn variants_of_a_file_are_measured_unless_one_says_its_latencies() {
    let measured = |cluster: &Cluster| match cluster.models[0].engine {
        EngineSpec::Onnx { is_measured, .. } => is_measured,
        _ => panic!("not of a file"),
    };
    let cluster = good(&digits_super(["", ""]));
    assert!(measured(&cluster) && cluster.models[0].is_controlled());
    assert_eq!(cluster.models[0].files().len(), 1);
    let cluster = good(&digits_super(["latency_ms = [1, 2]", "latency_ms = [2, 4]"]));
    assert!(!measured(&cluster));
    assert!(!good(&model_with("")).models[0].is_controlled());
    assert_eq!(cluster.models[0].profile_of(1).latency(2), Nanos::from_millis(4));
    assert!(check(&digits_super(["latency_ms = [1, 2]", ""])).cluster.is_err());
    let text = digits_super(["", ""]).replace("\"onnx\"", "\"emulated\"");
    let emulated: String = text
        .lines()
        .filter(|line| !line.starts_with("file"))
        .fold(String::new(), |text, line| text + line + "\n");
    let problems = lines(&check(&emulated).cluster.unwrap_err());
    assert!(problems.iter().any(|it| it.contains("alpha_ms: is missing")), "{problems:#?}");
}
