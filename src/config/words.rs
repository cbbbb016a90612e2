//! The words that some options choose from.

use std::fmt;

use crate::filter::TypeName;

/// A choice between a few words.
pub trait Word: Copy + PartialEq + Send + Sync + 'static {
    const ALL: &'static [(&'static str, Self)];

    /// # Errors
    /// `Unknown`, which names the choices and the nearest.
    fn parse(text: &str) -> Result<Self, Unknown> {
        Self::ALL
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| Unknown::new(text, Self::ALL.iter().map(|(word, _)| *word)))
    }

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

/// A word that is none of the choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    word: String,
    choices: Vec<&'static str>,
}

impl Unknown {
    pub fn new(word: &str, choices: impl Iterator<Item = &'static str>) -> Self {
        Unknown { word: word.to_owned(), choices: choices.collect() }
    }
}

impl std::error::Error for Unknown {}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is none of {}", self.word, self.choices.join(", "))?;
        match super::nearest(&self.word, self.choices.iter().copied()) {
            Some(near) => write!(f, "; did you mean '{near}'?"),
            None => Ok(()),
        }
    }
}

/// What becomes of keys in scope that the target already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    #[default]
    Refuse,
    Replace,
    Keep,
}

impl Word for Existing {
    const ALL: &'static [(&'static str, Self)] =
        &[("refuse", Existing::Refuse), ("replace", Existing::Replace), ("keep", Existing::Keep)];
}

/// What becomes of a command that the target refuses for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    #[default]
    Stop,
    Skip,
    Recopy,
}

impl Word for OnError {
    const ALL: &'static [(&'static str, Self)] =
        &[("stop", OnError::Stop), ("skip", OnError::Skip), ("recopy", OnError::Recopy)];
}

/// How the copy is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyBy {
    #[default]
    Snapshot,
    Scan,
}

impl Word for CopyBy {
    const ALL: &'static [(&'static str, Self)] = &[("snapshot", CopyBy::Snapshot), ("scan", CopyBy::Scan)];
}

/// Which offset the source is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    #[default]
    Applied,
    Received,
}

impl Word for Ack {
    const ALL: &'static [(&'static str, Self)] = &[("applied", Ack::Applied), ("received", Ack::Received)];
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    #[default]
    Auto,
    Bar,
    Log,
    None,
}

impl Word for Progress {
    const ALL: &'static [(&'static str, Self)] =
        &[("auto", Progress::Auto), ("bar", Progress::Bar), ("log", Progress::Log), ("none", Progress::None)];
}

/// The least important message that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl Word for LogLevel {
    const ALL: &'static [(&'static str, Self)] = &[
        ("off", LogLevel::Off),
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl Word for LogFormat {
    const ALL: &'static [(&'static str, Self)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];
}

/// What `--type` may name.
impl Word for TypeName {
    const ALL: &'static [(&'static str, Self)] = &TypeName::NAMED;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_misspelt_names_choices_and_nearest() {
        assert_eq!(Existing::parse("keep"), Ok(Existing::Keep));
        let error = Existing::parse("repalce").unwrap_err().to_string();
        let said = "'repalce' is none of refuse, replace, keep; did you mean 'replace'?";
        assert_eq!(error, said);
        assert_eq!(OnError::Recopy.as_str(), "recopy");
    }
}
