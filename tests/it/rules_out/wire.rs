//! What stands between keyferry and a server, where a test needs bytes to come late, in part or not at all.

use crate::wait::{HALF_MINUTE, until};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes each connection to `serve`, with one to the server on the port that `to` says then.
fn listen(to: Arc<AtomicU16>, serve: impl Fn(TcpStream, TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))) else { continue };
            for stream in [&near, &far] {
                stream.set_nodelay(true).expect("no delay");
            }
            serve(near, far);
        }
    });
    port
}

fn twin(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a second handle")
}

/// Passes on what `part` makes of each piece until it makes nothing of one, or an end closes; then closes both.
fn pump(mut from: TcpStream, mut into: TcpStream, mut part: impl FnMut(&[u8]) -> Option<Vec<u8>>) {
    let mut buf = [0; 65_536];
    while let Ok(n @ 1..) = from.read(&mut buf) {
        let Some(bytes) = part(&buf[..n]) else { return };
        if into.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn whole(piece: &[u8]) -> Option<Vec<u8>> {
    Some(piece.to_vec())
}

fn holds(piece: &[u8], word: &[u8]) -> Option<usize> {
    piece.windows(word.len()).position(|w| w == word)
}

/// The way to the server of a connection that was cut, and what is still to go there.
type Kept = Arc<Mutex<Option<(TcpStream, Vec<u8>)>>>;

/// Cuts the connection that carries a word, and keeps what it carried on its way to the server.
pub struct Late {
    pub port: u16,
    kept: Kept,
    /// The server has closed the connection that was cut.
    closed: Arc<AtomicBool>,
}

impl Late {
    pub fn before(port: u16, word: &'static [u8]) -> Late {
        let kept = Kept::default();
        let (closed, once) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let late = Late { port: 0, kept: Arc::clone(&kept), closed: Arc::clone(&closed) };
        let port = listen(Arc::new(AtomicU16::new(port)), move |near, far| {
            let cut = Arc::new(AtomicBool::new(false));
            let (kept, once, is_cut) = (Arc::clone(&kept), Arc::clone(&once), Arc::clone(&cut));
            let (client, server, up) = (twin(&near), twin(&far), (twin(&near), twin(&far)));
            thread::spawn(move || {
                pump(up.0, up.1, |piece| {
                    if holds(piece, word).is_none() || once.swap(true, Ordering::SeqCst) {
                        return whole(piece);
                    }
                    is_cut.store(true, Ordering::SeqCst);
                    *kept.lock().expect("what is kept") = Some((twin(&server), piece.to_vec()));
                    let _ = client.shutdown(Shutdown::Both);
                    None
                });
            });
            let closed = Arc::clone(&closed);
            thread::spawn(move || {
                let (mut far, mut near, mut buf) = (far, near, [0; 65_536]);
                while let Ok(n @ 1..) = far.read(&mut buf) {
                    // What the server says on a connection that was cut, nobody hears.
                    let heard = near.write_all(&buf[..n]).is_ok();
                    if !heard && !cut.load(Ordering::SeqCst) {
                        break;
                    }
                }
                let _ = near.shutdown(Shutdown::Both);
                if cut.load(Ordering::SeqCst) {
                    closed.store(true, Ordering::SeqCst);
                }
            });
        });
        Late { port, ..late }
    }

    pub fn until_cut(&self) {
        until(HALF_MINUTE, "the connection that is cut", || self.kept.lock().expect("what is kept").is_some());
    }

    /// Lets the server have what was kept, and waits until it has dealt with it or closed the connection before.
    pub fn arrive(&self) {
        let (mut server, bytes) = self.kept.lock().expect("what is kept").take().expect("something was kept");
        // A connection that was killed takes nothing.
        let _ = server.write_all(&bytes);
        let _ = server.shutdown(Shutdown::Write);
        until(HALF_MINUTE, "the end of the late connection", || self.closed.load(Ordering::SeqCst));
    }
}

/// Passes the stream of a source up to a word and no further; other connections pass whole.
pub struct Gate {
    pub port: u16,
    to: Arc<AtomicU16>,
    shut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    /// Shut at first: nothing of a stream passes that isn't through.
    pub fn before(port: u16, word: &'static [u8]) -> Gate {
        let (to, shut) = (Arc::new(AtomicU16::new(port)), Arc::new(AtomicBool::new(false)));
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (shut_for, opened) = (Arc::clone(&shut), Arc::clone(&open));
        let port = listen(Arc::clone(&to), move |near, far| {
            opened.lock().expect("the list of connections").extend([twin(&near), twin(&far)]);
            let is_link = Arc::new(AtomicBool::new(false));
            let (link, up) = (Arc::clone(&is_link), (twin(&near), twin(&far)));
            thread::spawn(move || {
                pump(up.0, up.1, |piece| {
                    link.fetch_or(holds(piece, b"PSYNC").is_some(), Ordering::SeqCst);
                    whole(piece)
                });
            });
            let shut = Arc::clone(&shut_for);
            let mut passed = false;
            thread::spawn(move || {
                pump(far, near, |piece| {
                    if !is_link.load(Ordering::SeqCst) {
                        return whole(piece);
                    }
                    if passed {
                        return Some(Vec::new());
                    }
                    until(HALF_MINUTE, "the gate to open", || !shut.load(Ordering::SeqCst));
                    let end = holds(piece, word).map(|at| at + word.len());
                    passed = end.is_some();
                    Some(piece[..end.unwrap_or(piece.len())].to_vec())
                });
            });
        });
        Gate { port, to, shut, open }
    }

    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
    }

    /// New connections go to another server.
    pub fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::SeqCst);
    }

    /// New connections go to another server, and those that stand are cut.
    pub fn turn_to(&self, port: u16) {
        self.lead_to(port);
        for stream in self.open.lock().expect("the list of connections").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// An address that moves from one server to another: at first only for connections whose first bytes hold a word.
pub struct Moving {
    pub port: u16,
    whole: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Moving {
    pub fn from_to(from: u16, to: u16, word: &'static [u8]) -> Moving {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (whole_move, open) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let moving = Moving { port, whole: Arc::clone(&whole_move), open: Arc::clone(&open) };
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let (whole_move, open) = (Arc::clone(&whole_move), Arc::clone(&open));
                thread::spawn(move || {
                    let (mut near, mut buf) = (near, [0; 65_536]);
                    let Ok(n @ 1..) = near.read(&mut buf) else { return };
                    let moved = whole_move.load(Ordering::SeqCst) || holds(&buf[..n], word).is_some();
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", if moved { to } else { from })) else { return };
                    let streams: &mut Vec<TcpStream> = &mut open.lock().expect("the list of connections");
                    streams.extend([twin(&near), twin(&far)]);
                    if far.write_all(&buf[..n]).is_ok() {
                        let (back, forth) = ((twin(&far), twin(&near)), (near, far));
                        thread::spawn(move || pump(back.0, back.1, whole));
                        thread::spawn(move || pump(forth.0, forth.1, whole));
                    }
                });
            }
        });
        moving
    }

    /// All connections go to the new server, and those that stand are cut.
    pub fn move_all(&self) {
        self.whole.store(true, Ordering::SeqCst);
        for stream in self.open.lock().expect("the list of connections").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Keeps the first ACKs of a replica from its source; returns the port.
pub fn without_first_acks(port: u16, count: usize) -> u16 {
    let dropped = Arc::new(AtomicUsize::new(0));
    listen(Arc::new(AtomicU16::new(port)), move |near, far| {
        let (dropped, up) = (Arc::clone(&dropped), (twin(&near), twin(&far)));
        thread::spawn(move || {
            pump(up.0, up.1, |piece| {
                let is_ack = holds(piece, b"REPLCONF\r\n$3\r\nACK").is_some();
                if is_ack && dropped.fetch_add(1, Ordering::SeqCst) < count {
                    return Some(Vec::new());
                }
                whole(piece)
            });
        });
        thread::spawn(move || pump(far, near, whole));
    })
}
