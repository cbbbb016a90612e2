//! Key patterns, matched as the servers match those of KEYS and SCAN.
//!
//! Source: redis 7.0 src/util.c, stringmatchlen_impl, and the short cut for `*` in keysCommand.

use memchr::memmem;

/// The longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// How many stars a pattern may have; the servers give up beyond.
pub const STARS_MAX: usize = 1000;

/// Why a pattern is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("is longer than {PATTERN_BYTES_MAX} bytes")]
    TooLong,
    #[error("has more than {STARS_MAX} stars")]
    TooManyStars,
}

/// A pattern of `*`, `?`, `[a-z]`, `[^a-z]`, `\x` and plain bytes.
///
/// Every element but the star takes just one byte of the key, so going back to the last star is enough: the time is
/// at most the key's length times the pattern's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Form);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    All,
    Exact(Vec<u8>),
    /// `text*`
    Prefix(Vec<u8>),
    /// `*text`
    Suffix(Vec<u8>),
    /// `*text*`
    Contains(Vec<u8>),
    Elements(Vec<Element>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Element {
    Star,
    One,
    Byte(u8),
    Class(Box<Class>),
}

/// Which bytes a bracket stands for, a bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Class([u64; 4]);

impl Class {
    fn add(&mut self, byte: u8) {
        if let Some(word) = self.0.get_mut(usize::from(byte >> 6)) {
            *word |= 1 << (byte & 63);
        }
    }

    /// In either order. The servers compare as C's `char`, signed on x86-64 [T]: `[a-\xff]` is what lies between -1
    /// and 97.
    fn add_range(&mut self, start: i8, end: i8) {
        (start.min(end)..=start.max(end)).for_each(|byte| self.add(byte as u8));
    }

    fn has(&self, byte: u8) -> bool {
        let word = self.0.get(usize::from(byte >> 6)).copied().unwrap_or(0);
        word >> (byte & 63) & 1 == 1
    }

    fn negated(self) -> Self {
        Class(self.0.map(|word| !word))
    }
}

impl Glob {
    /// # Errors
    /// `TooLong` and `TooManyStars`; no pattern is malformed, an unclosed bracket ends with the pattern.
    pub fn new(pattern: &[u8]) -> Result<Self, GlobError> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(GlobError::TooLong);
        }
        if pattern == b"*" {
            return Ok(Glob(Form::All));
        }
        let elements = parse(pattern);
        let stars = elements.iter().filter(|e| **e == Element::Star).count();
        if stars > STARS_MAX {
            return Err(GlobError::TooManyStars);
        }
        Ok(Glob(simplest(elements)))
    }

    /// Whether every key matches.
    pub fn is_all(&self) -> bool {
        self.0 == Form::All
    }

    pub fn matches(&self, key: &[u8]) -> bool {
        match &self.0 {
            Form::All => true,
            Form::Exact(text) => key == text,
            Form::Prefix(text) => key.starts_with(text),
            Form::Suffix(text) => key.ends_with(text),
            Form::Contains(text) => memmem::find(key, text).is_some(),
            Form::Elements(elements) => matches(elements, key),
        }
    }
}

/// The fastest form of `elements`. No text is empty, but for the exact one: a lone star is not `All` here, see [`matches`].
fn simplest(elements: Vec<Element>) -> Form {
    let text = |part: &[Element]| -> Option<Vec<u8>> {
        part.iter()
            .map(|element| match element {
                Element::Byte(byte) => Some(*byte),
                _ => None,
            })
            .collect()
    };
    let form = match elements.as_slice() {
        [Element::Star, middle @ .., Element::Star] if !middle.is_empty() => text(middle).map(Form::Contains),
        [Element::Star, rest @ ..] if !rest.is_empty() => text(rest).map(Form::Suffix),
        [rest @ .., Element::Star] if !rest.is_empty() => text(rest).map(Form::Prefix),
        all => text(all).map(Form::Exact),
    };
    form.unwrap_or(Form::Elements(elements))
}

fn parse(mut rest: &[u8]) -> Vec<Element> {
    let mut elements = Vec::new();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'*', _) => {
                if elements.last() != Some(&Element::Star) {
                    elements.push(Element::Star);
                }
            }
            (b'?', _) => elements.push(Element::One),
            (b'[', _) => {
                let (class, after) = parse_class(after);
                elements.push(Element::Class(Box::new(class)));
                rest = after;
            }
            // A backslash at the very end stands for itself.
            (b'\\', [escaped, after @ ..]) => {
                elements.push(Element::Byte(*escaped));
                rest = after;
            }
            (byte, _) => elements.push(Element::Byte(byte)),
        }
    }
    elements
}

/// Reads a bracket from behind its `[`, and returns what follows it.
///
/// As the servers do: `]` first closes it at once, `a-]` is a range, and it may end with the pattern.
fn parse_class(mut rest: &[u8]) -> (Class, &[u8]) {
    let negated = rest.first() == Some(&b'^');
    if negated {
        rest = rest.get(1..).unwrap_or_default();
    }
    let mut class = Class::default();
    loop {
        rest = match rest {
            [] => break,
            [b'\\', escaped, after @ ..] => {
                class.add(*escaped);
                after
            }
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [start, b'-', end, after @ ..] => {
                class.add_range(*start as i8, *end as i8);
                after
            }
            [byte, after @ ..] => {
                class.add(*byte);
                after
            }
        };
    }
    (if negated { class.negated() } else { class }, rest)
}

/// An empty key matches only the empty pattern and, by the short cut, `*`: the servers end before they look at stars.
fn matches(elements: &[Element], key: &[u8]) -> bool {
    if key.is_empty() {
        return elements.is_empty();
    }
    let (mut at, mut next) = (0, 0);
    // Where to go on if what follows the last star doesn't fit: behind the star, one byte further.
    let mut retry: Option<(usize, usize)> = None;
    while let Some(&byte) = key.get(at) {
        let fits = match elements.get(next) {
            Some(Element::Star) => {
                next += 1;
                retry = Some((next, at));
                continue;
            }
            Some(Element::One) => true,
            Some(Element::Byte(wanted)) => *wanted == byte,
            Some(Element::Class(class)) => class.has(byte),
            None => false,
        };
        if fits {
            (at, next) = (at + 1, next + 1);
        } else if let Some((behind_star, tried)) = retry {
            (at, next) = (tried + 1, behind_star);
            retry = Some((behind_star, at));
        } else {
            return false;
        }
    }
    elements.get(next..).is_some_and(|rest| rest.iter().all(|element| *element == Element::Star))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn glob(pattern: &[u8], key: &[u8]) -> bool {
        Glob::new(pattern).expect("a pattern within limits").matches(key)
    }

    /// The server's own function, line by line and recursive.
    fn reference(mut p: &[u8], mut s: &[u8]) -> bool {
        let whole = p == b"*";
        while !p.is_empty() && !s.is_empty() {
            match p[0] {
                b'*' => {
                    while p.len() > 1 && p[1] == b'*' {
                        p = &p[1..];
                    }
                    if p.len() == 1 {
                        return true;
                    }
                    return (0..s.len()).any(|skip| reference(&p[1..], &s[skip..]));
                }
                b'?' => s = &s[1..],
                b'[' => {
                    p = &p[1..];
                    let not = p.first() == Some(&b'^');
                    if not {
                        p = &p[1..];
                    }
                    let mut hit = false;
                    loop {
                        if p.len() >= 2 && p[0] == b'\\' {
                            p = &p[1..];
                            hit |= p[0] == s[0];
                        } else if p.first().is_none_or(|byte| *byte == b']') {
                            break;
                        } else if p.len() >= 3 && p[1] == b'-' {
                            let (a, b) = (p[0] as i8, p[2] as i8);
                            p = &p[2..];
                            hit |= (a.min(b)..=a.max(b)).contains(&(s[0] as i8));
                        } else {
                            hit |= p[0] == s[0];
                        }
                        p = &p[1..];
                    }
                    if hit == not {
                        return false;
                    }
                    s = &s[1..];
                }
                _ => {
                    if p[0] == b'\\' && p.len() >= 2 {
                        p = &p[1..];
                    }
                    if p[0] != s[0] {
                        return false;
                    }
                    s = &s[1..];
                }
            }
            p = p.get(1..).unwrap_or_default();
            if s.is_empty() {
                while p.first() == Some(&b'*') {
                    p = &p[1..];
                }
                break;
            }
        }
        whole || (p.is_empty() && s.is_empty())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn matches_equals_the_servers_recursion(
            pattern in prop::collection::vec(prop::sample::select(&b"ab*?[]^-\\\xff"[..]), 0..12),
            key in prop::collection::vec(prop::sample::select(&b"ab-]^[\\\xff"[..]), 0..10),
        ) {
            prop_assert_eq!(glob(&pattern, &key), reference(&pattern, &key));
        }
    }

    #[test]
    fn nested_stars_take_no_exponential_time() {
        let pattern = b"*a".repeat(STARS_MAX / 2);
        assert!(!glob(&[&pattern[..], b"b"].concat(), &b"a".repeat(5_000)));
    }

    #[test]
    fn limits_hold_at_and_refuse_beyond() {
        assert!(Glob::new(&b"a".repeat(PATTERN_BYTES_MAX)).is_ok());
        assert_eq!(Glob::new(&b"a".repeat(PATTERN_BYTES_MAX + 1)), Err(GlobError::TooLong));
        assert!(Glob::new(&b"*a".repeat(STARS_MAX)).is_ok());
        assert_eq!(Glob::new(&b"*a".repeat(STARS_MAX + 1)), Err(GlobError::TooManyStars));
    }
}
