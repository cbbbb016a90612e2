//! A command being put together.

use std::borrow::Cow;

use crate::args::OwnedArgs;

/// The arguments of a command to be sent, name first.
pub(super) struct Words<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> Words<'a> {
    pub(super) fn new(name: &'a str) -> Self {
        Words(vec![Cow::Borrowed(name.as_bytes())])
    }

    pub(super) fn word(self, word: &'a str) -> Self {
        self.arg(word.as_bytes())
    }

    pub(super) fn arg(mut self, arg: &'a [u8]) -> Self {
        self.0.push(Cow::Borrowed(arg));
        self
    }

    pub(super) fn int(mut self, number: i64) -> Self {
        self.0.push(Cow::Owned(number.to_string().into_bytes()));
        self
    }

    pub(super) fn extend(mut self, args: impl Iterator<Item = &'a [u8]>) -> Self {
        self.0.extend(args.map(Cow::Borrowed));
        self
    }

    pub(super) fn build(self) -> OwnedArgs {
        OwnedArgs::new(&self.0)
    }
}
