//! What the contract promises and this version doesn't do yet. An issue that builds a thing deletes its line here.

use super::Error;
use super::raw::Raw;
use super::words::CopyBy;
use crate::net::endpoint::Place;

/// Something that can be asked for but isn't built.
struct Unbuilt {
    what: &'static str,
    asked: fn(&Raw) -> bool,
    hint: &'static str,
}

/// Refused with exit code 2: without them a job would do something else than it was told.
const REFUSED: &[Unbuilt] = &[
    Unbuilt {
        what: "reading from a file",
        asked: |raw| places(raw).any(|place| matches!(place, Place::File(_))),
        hint: "give the URL of a running server: redis://host:port",
    },
    Unbuilt {
        what: "--copy scan",
        asked: |raw| raw.source.copy == Some(CopyBy::Scan),
        hint: "leave it out: the copy is then taken from the source's snapshot",
    },
    Unbuilt {
        what: "--guard-memory",
        asked: |raw| raw.target.guard_memory.is_some(),
        hint: "leave it out: a target that answers OOM is waited for",
    },
    Unbuilt {
        what: "--http",
        asked: |raw| raw.http.listen.is_some(),
        hint: "leave it out: --progress log prints the same every 5 s",
    },
];

/// # Errors
/// `Usage` for the first thing that is asked for and not built.
pub fn refuse(raw: &Raw) -> Result<(), Error> {
    match REFUSED.iter().find(|unbuilt| (unbuilt.asked)(raw)) {
        Some(unbuilt) => Err(Error::usage(format!("{} is not yet supported", unbuilt.what), unbuilt.hint)),
        None => Ok(()),
    }
}

fn places(raw: &Raw) -> impl Iterator<Item = &Place> {
    raw.source.url.iter().chain(&raw.target.url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbuilt_options_are_refused_and_their_defaults_taken() {
        for text in [
            "[source]\nurl = 'dump.rdb'",
            "[source]\ncopy = 'scan'",
            "[target]\nguard_memory = '90%'",
            "[http]\nlisten = ':1'",
        ] {
            let raw = toml::from_str(text).unwrap();
            assert!(refuse(&raw).is_err(), "{text}");
        }
        for text in [
            "",
            "[source]\nurl = 'redis-sentinel://h/m'\n[target]\nurl = 'redis://a,b'",
            "[source]\nurl = 'redis://h?cluster=false'\ncopy = 'snapshot'\nprefer_replica = true",
            "[source]\nurl = 'redis://a,b?cluster=true'",
            "[target]\nurl = 'redis://h?cluster=true'",
            "[target]\nexpiry_grace = 0\nlossy = true",
        ] {
            let raw = toml::from_str(text).unwrap();
            assert!(refuse(&raw).is_ok(), "{text}");
        }
    }
}
