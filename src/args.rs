//! The arguments of one command, as ranges into the bytes it came in.

/// Where one argument lies in the raw bytes of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

/// A command's arguments, name first, without copying them.
///
/// `raw` is the whole RESP array as it came from the source; a command is never over 4 GiB
/// (`resp::limits`), so a span fits in two `u32`.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    raw: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// `spans` lie within `raw`, in order; the parser that made them guarantees it.
    pub fn new(raw: &'a [u8], spans: &'a [Span]) -> Self {
        Args { raw, spans }
    }

    /// How many arguments there are, the command's name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The bytes of argument `index`, 0 being the command's name.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index)?;
        self.raw.get(span.start as usize..span.end as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.spans.iter().filter_map(|s| self.raw.get(s.start as usize..s.end as usize))
    }

    /// The whole command in RESP, as it came.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }
}

/// Owned arguments for tests and for commands that are built here: encodes them and keeps the spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedArgs {
    raw: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// Encodes `args` as a RESP array of bulk strings.
    pub fn new<A: AsRef<[u8]>>(args: &[A]) -> Self {
        let mut raw = format!("*{}\r\n", args.len()).into_bytes();
        let mut spans = Vec::with_capacity(args.len());
        for arg in args {
            let arg = arg.as_ref();
            raw.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            let start = raw.len() as u32;
            raw.extend_from_slice(arg);
            spans.push(Span { start, end: raw.len() as u32 });
            raw.extend_from_slice(b"\r\n");
        }
        OwnedArgs { raw, spans }
    }

    pub fn args(&self) -> Args<'_> {
        Args::new(&self.raw, &self.spans)
    }
}
