//! One command, while its arguments are put together.

use std::borrow::Cow;

/// Takes one command: its arguments, name first.
pub type Out<'o> = dyn FnMut(&[&[u8]]) + 'o;

pub(super) struct Command<'a> {
    args: Vec<Cow<'a, [u8]>>,
}

impl<'a> Command<'a> {
    pub fn new(name: &'a [u8]) -> Self {
        Command { args: vec![Cow::Borrowed(name)] }
    }

    pub fn arg(mut self, arg: &'a [u8]) -> Self {
        self.args.push(Cow::Borrowed(arg));
        self
    }

    pub fn args(mut self, args: &[&'a [u8]]) -> Self {
        self.args.extend(args.iter().map(|&arg| Cow::Borrowed(arg)));
        self
    }

    pub fn owned(mut self, arg: Vec<u8>) -> Self {
        self.args.push(Cow::Owned(arg));
        self
    }

    pub fn emit(self, out: &mut Out<'_>) {
        let args: Vec<&[u8]> = self.args.iter().map(|arg| &**arg).collect();
        out(&args);
    }
}

/// A number, or an id, as an argument.
pub(super) fn number(n: impl ToString) -> Vec<u8> {
    n.to_string().into_bytes()
}
