//! The keys of `[gateway]`: how the gateway meets its clients. The gateway reads the files named here; other members do not
//! need them.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use baton_types::RateLimit;

use crate::cluster_file::section::Section;

/// Most tokens.
const TOKENS_MAX: usize = 1_024;
/// Shared memory that clients may register, MiB.
const SHARED_MIB: RangeInclusive<u32> = 1..=1 << 20;

/// `[gateway]`.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct GatewaySpec {
    /// What it shows its clients; `None`: no TLS towards them.
    pub tls: Option<GatewayTlsSpec>,
    /// Who may use it; empty: everyone who reaches it.
    pub tokens: Vec<TokenSpec>,
    /// Models whose inputs may be sent as images.
    pub images: Vec<ImageSpec>,
    /// MiB of shared memory that clients of its host may register; `None`: they may not.
    pub shared_memory_mib: Option<u32>,
}

/// `[[gateway.image]]`: how a model takes images.
#[derive(Clone, PartialEq, Debug)]
pub struct ImageSpec {
    /// Its name.
    pub model: String,
    /// Taken off values between 0 and 1: one number, or one for each channel.
    pub mean: Vec<f64>,
    /// What is left is divided by these.
    pub std: Vec<f64>,
}

/// A certificate towards clients. It need not be the one for `[tls]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayTlsSpec {
    /// PEM: the certificate, followed by those between it and the authority's.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// `[[gateway.token]]`: a bearer token and what its owner may do.
#[derive(Clone, PartialEq, Debug)]
pub struct TokenSpec {
    /// What logs and metrics call its owner.
    pub name: String,
    /// A file whose only line is the token.
    pub file: PathBuf,
    /// Tasks per second, of all models together.
    pub max_rps: Option<f64>,
    /// Models that it may use; `None`: all.
    pub models: Option<Vec<String>>,
    /// It may load and unload models.
    pub operator: bool,
}

/// The table, if the file has it. `models` are the names in the file.
pub(crate) fn gateway(root: &Section<'_>, models: &[&str], folder: &Path) -> GatewaySpec {
    if !root.has("gateway") {
        return GatewaySpec::default();
    }
    let section = root.table("gateway");
    let tls = tls(&section, folder);
    let sections = section.tables("token");
    if sections.len() > TOKENS_MAX {
        let what = format!("there are more than {TOKENS_MAX}");
        section.refuse("token", what, "run several gateways");
    }
    let mut tokens: Vec<TokenSpec> = Vec::new();
    for one in &sections {
        let Some(token) = token(one, models, folder) else { continue };
        if tokens.iter().any(|other| other.name == token.name) {
            let what = format!("another token is named `{}`", token.name);
            one.refuse("name", what, "give each a name of its own");
        }
        tokens.push(token);
    }
    if !tokens.is_empty() && tls.is_none() {
        let what = "tokens travel in the clear: there is no cert";
        section.warn("token", what, "give cert and key, or put TLS before the gateway");
    }
    let images = section.tables("image").iter().filter_map(|one| image(one, models)).collect();
    let shared_memory_mib = section.integer("shared_memory_mib", SHARED_MIB);
    section.refuse_unread();
    GatewaySpec { tls, tokens, images, shared_memory_mib }
}

fn image(section: &Section<'_>, known: &[&str]) -> Option<ImageSpec> {
    section.require("model", "name a [[model]] whose input is an image");
    let model = section.name("model").map(str::to_owned);
    let mean = section.numbers("mean", -1e3..=1e3).unwrap_or_else(|| vec![0.0]);
    let std = section.numbers("std", 1e-6..=1e3).unwrap_or_else(|| vec![1.0]);
    for (key, of) in [("mean", &mean), ("std", &std)] {
        if ![1, 3].contains(&of.len()) {
            section.refuse(key, "has neither one number nor three", "give one for each channel");
        }
    }
    if let Some(model) = model.as_deref().filter(|model| !known.contains(model)) {
        let what = format!("`{model}` is no [[model]] of this file");
        section.warn("model", what, "correct the name, unless `baton model add` adds it");
    }
    section.refuse_unread();
    Some(ImageSpec { model: model?, mean, std })
}

/// Half of TLS is no TLS: both keys or none.
fn tls(section: &Section<'_>, folder: &Path) -> Option<GatewayTlsSpec> {
    if !section.has("cert") && !section.has("key") {
        return None;
    }
    let file = |key: &'static str| {
        section.require(key, "name the PEM file; docs/gateway.md says what it is for");
        section.text(key).map(|name| folder.join(name))
    };
    let (cert, key) = (file("cert"), file("key"));
    cert.zip(key).map(|(cert, key)| GatewayTlsSpec { cert, key })
}

fn token(section: &Section<'_>, known: &[&str], folder: &Path) -> Option<TokenSpec> {
    section.require("name", "name the owner: name = \"team-a\"");
    section.require("file", "name a file whose only line is the token");
    let name = section.name("name").map(str::to_owned);
    let file = section.text("file").map(|name| folder.join(name));
    let max_rps = section.number("max_rps", RateLimit::RANGE);
    let models = section.texts("models");
    let operator = section.truth("operator").unwrap_or(false);
    if models.as_ref().is_some_and(Vec::is_empty) {
        section.refuse("models", "is empty: it allows no model", "list one, or remove the key");
    }
    for model in models.iter().flatten().filter(|model| !known.contains(&model.as_str())) {
        let what = format!("`{model}` is no [[model]] of this file");
        section.warn(
            "models",
            what,
            "correct the name, unless `baton model add` adds such a model",
        );
    }
    section.refuse_unread();
    Some(TokenSpec { name: name?, file: file?, max_rps, models, operator })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checked, check_text};

    fn check(gateway: &str) -> Checked {
        let model =
            "[[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\ninput_bytes = 8\n";
        let backend = "[[backend]]\nname = \"b\"\n";
        check_text(Path::new("/at/cluster.toml"), &format!("{model}{backend}{gateway}"))
    }

    const TOKEN: &str = "[[gateway.token]]\nname = \"a\"\nfile = \"a.token\"\n";

    #[test]
    fn certificate_and_tokens_are_read_relative_to_the_file() {
        let tls = "[gateway]\ncert = \"g.pem\"\nkey = \"/g.key\"\n";
        let checked =
            check(&format!("{tls}{TOKEN}max_rps = 0.5\nmodels = [\"m\"]\noperator = true\n"));
        assert!(checked.warnings.is_empty(), "{:?}", checked.warnings);
        let token = TokenSpec {
            name: "a".into(),
            file: "/at/a.token".into(),
            max_rps: Some(0.5),
            models: Some(vec!["m".into()]),
            operator: true,
        };
        let tls = GatewayTlsSpec { cert: "/at/g.pem".into(), key: "/g.key".into() };
        let (tls, tokens) = (Some(tls), vec![token]);
        let expected = GatewaySpec { tls, tokens, ..GatewaySpec::default() };
        assert_eq!(checked.cluster.unwrap().gateway, expected);
        assert_eq!(check("").cluster.unwrap().gateway, GatewaySpec::default());
    }

    #[test]
    fn images_have_a_mean_and_a_deviation_for_each_channel_or_one_for_all() {
        let image = "[[gateway.image]]\nmodel = \"m\"\n";
        let gateway = check(image).cluster.unwrap().gateway;
        let plain = ImageSpec { model: "m".into(), mean: vec![0.0], std: vec![1.0] };
        assert_eq!(gateway.images, [plain]);
        let full = format!("{image}mean = [0.5, 0.4, 0.3]\nstd = [0.2]\n");
        assert_eq!(check(&full).cluster.unwrap().gateway.images[0].mean, [0.5, 0.4, 0.3]);
        for wrong in ["mean = [1, 2]\n", "std = [0]\n", "size = 3\n"] {
            assert!(check(&format!("{image}{wrong}")).cluster.is_err(), "{wrong}");
        }
    }

    #[test]
    fn shared_memory_is_off_unless_it_has_a_bound() {
        let mib = |key: &str| check(&format!("[gateway]\n{key}\n")).cluster;
        assert_eq!(mib("shared_memory_mib = 64").unwrap().gateway.shared_memory_mib, Some(64));
        assert_eq!(mib("").unwrap().gateway.shared_memory_mib, None);
        assert!(mib("shared_memory_mib = 0").is_err() && mib("shared_memory_mib = true").is_err());
    }

    #[test]
    fn what_would_leave_the_gateway_open_or_closed_by_mistake_is_said() {
        for (text, key, words) in [
            ("[gateway]\ncert = \"c\"\n", "gateway.key", "is missing"),
            ("[gateway]\nkey = \"k\"\n", "gateway.cert", "is missing"),
            (&TOKEN.repeat(2), "gateway.token[1].name", "another token is named `a`"),
            (&TOKEN.replace("token]]", "tokens]]"), "gateway.tokens", ""),
            ("[[gateway.token]]\nname = \"a\"\n", "gateway.token[0].file", "is missing"),
            (&format!("{TOKEN}max_rps = 0\n"), "gateway.token[0].max_rps", "0"),
            (&format!("{TOKEN}models = []\n"), "gateway.token[0].models", "allows no model"),
        ] {
            let problems = check(text).cluster.unwrap_err();
            let is_it =
                |problem: &crate::Problem| problem.key == key && problem.what.contains(words);
            assert!(problems.iter().any(is_it), "{text}: {problems:?}");
        }
        let warned = check(&format!("{TOKEN}models = [\"n\"]\n")).warnings;
        let keys: Vec<&str> = warned.iter().map(|warning| warning.key.as_str()).collect();
        assert_eq!(keys.len(), 2, "{warned:?}");
        for key in ["gateway.token", "gateway.token[0].models"] {
            assert!(keys.contains(&key), "{warned:?}");
        }
    }
}
