//! Which server is under load: `http://HOST:PORT/PREFIX` or `grpc://HOST:PORT`, with TLS `https://` or `grpcs://`.

use std::fmt;
use std::str::FromStr;

/// What a server speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// The Open Inference Protocol v2 over HTTP/1.1.
    Http,
    /// The same over gRPC.
    Grpc,
}

/// A server of the Open Inference Protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// What it speaks.
    pub protocol: Protocol,
    /// Over TLS.
    pub is_secure: bool,
    /// Host and port, as a socket takes them.
    pub authority: String,
    /// What stands before `/v2`, without a slash at the end.
    pub prefix: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fix = "write http://HOST:PORT, with a prefix of /v2 if there is one, or grpc://HOST:PORT; with TLS https:// or grpcs://";
        let (scheme, rest) = text.split_once("://").ok_or(fix)?;
        let (protocol, is_secure) = match scheme {
            "http" => (Protocol::Http, false),
            "https" => (Protocol::Http, true),
            "grpc" => (Protocol::Grpc, false),
            "grpcs" => (Protocol::Grpc, true),
            other => return Err(format!("no server is reached by {other}://: {fix}")),
        };
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = authority.rsplit_once(':').ok_or(fix)?;
        if host.is_empty() || port.parse::<u16>().is_err() || host.contains('@') {
            return Err(fix.to_owned());
        }
        let path = path.trim_end_matches('/');
        let prefix = path.strip_suffix("/v2").unwrap_or(path).to_owned();
        if protocol == Protocol::Grpc && !prefix.is_empty() {
            return Err(format!("gRPC has no path {prefix}: {fix}"));
        }
        Ok(Self { protocol, is_secure, authority: authority.to_owned(), prefix })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.protocol, self.is_secure) {
            (Protocol::Http, false) => "http",
            (Protocol::Http, true) => "https",
            (Protocol::Grpc, false) => "grpc",
            (Protocol::Grpc, true) => "grpcs",
        };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_protocol_an_address_and_a_prefix() {
        let parse = |text: &str| text.parse::<Url>().unwrap();
        let plain = parse("http://localhost:8000");
        assert_eq!((plain.protocol, plain.authority.as_str()), (Protocol::Http, "localhost:8000"));
        assert_eq!(plain.prefix, "");
        for text in ["http://h:1/a/b/", "http://h:1/a/b/v2", "http://h:1/a/b/v2/"] {
            assert_eq!(parse(text).prefix, "/a/b", "{text}");
        }
        let grpc = parse("grpc://[::1]:8001");
        assert_eq!((grpc.protocol, grpc.authority.as_str()), (Protocol::Grpc, "[::1]:8001"));
        assert_eq!(parse("http://h:1/v2").to_string(), "http://h:1");
        for text in ["http://h:1", "https://h:1/a", "grpc://h:1", "grpcs://h:1"] {
            let url = parse(text);
            assert_eq!((url.to_string(), url.is_secure), (text.to_owned(), text.contains("s:")));
        }
    }

    #[test]
    fn what_is_no_url_is_refused_with_the_way_to_write_it() {
        for text in [
            "",
            "h:1",
            "http://h",
            "http://:1",
            "http://h:x",
            "ftp://h:1",
            "grpc://h:1/a",
            "http://u@h:1",
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains("http://HOST:PORT"), "{text}: {error}");
        }
    }
}
