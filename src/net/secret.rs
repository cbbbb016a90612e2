//! A password, which shows itself to nobody but the server.

use std::fmt;

/// A password: bytes that neither `Debug` nor `Display` prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(bytes.into())
    }

    /// The password itself, for AUTH and nothing else.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Hides the credentials of every URL in `text`: what stands between `://` and the last `@` of the same line.
///
/// For words that quote what somebody typed. Rather too much is hidden than too little: a raw password may hold
/// spaces, quotes and `@`.
pub fn hide_credentials(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(hide_in_line).collect();
    lines.join("\n")
}

fn hide_in_line(line: &str) -> String {
    match (line.find("://"), line.rfind('@')) {
        (Some(start), Some(end)) if start + 3 < end => {
            let (before, _) = line.split_at(start + 3);
            let (_, after) = line.split_at(end);
            format!("{before}***{after}")
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_debug_and_display_show_stars() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert_eq!(secret.reveal(), b"hunter2");
    }

    #[test]
    fn hide_credentials_of_urls_leaves_the_rest() {
        assert_eq!(hide_credentials("bad 'redis://u:a@b@h:1/x' there"), "bad 'redis://***@h:1/x' there");
        assert_eq!(hide_credentials("see redis://h\nmail me@x"), "see redis://h\nmail me@x");
    }
}
