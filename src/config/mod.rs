//! What a job shall do: options, a job file and the environment, made into one valid `Job`.
//!
//! `raw` holds what was said, layer by layer; `valid` makes a `Job` of it once, so that later code can't see a wrong one.

pub mod file;
pub mod raw;
pub mod unbuilt;
pub mod units;
pub mod valid;
pub mod words;

use std::io;
use std::path::PathBuf;

use crate::net::secret::hide_credentials;

/// A mistake in what the user asked for. Never holds a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("can't read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// Something is wrong at a line of a job file, counted from 1.
    #[error("{}, line {line}: {message}", path.display())]
    File { path: PathBuf, line: usize, message: String, hint: Option<String> },
    /// What was asked for contradicts itself or lacks something.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
}

impl Error {
    /// A mistake in what was asked for. `message` may quote what was typed: credentials in it are hidden here.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Usage { message: hide_credentials(&message.into()), hint: Some(hint.into()) }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Read { .. } => None,
            Error::File { hint, .. } | Error::Usage { hint, .. } => hint.as_deref(),
        }
    }
}

/// The one of `names` that `word` was probably meant to be; `None` if none is near.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    names
        .into_iter()
        .map(|name| (strsim::osa_distance(&word, &name.replace('-', "_")), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= 1 + name.len().min(word.len()) / 4)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_of_a_slip_is_the_name_and_of_anything_else_none() {
        let names = ["existing", "lanes", "flush"];
        assert_eq!(nearest("existng", names), Some("existing"));
        assert_eq!(nearest("Lane", names), Some("lanes"));
        assert_eq!(nearest("colour", names), None);
    }
}
