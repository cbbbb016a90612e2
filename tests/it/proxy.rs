//! A link that breaks at a chosen transaction.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// Where the link breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server never sees the EXEC.
    BeforeExec,
    /// The server runs it, and its answer is lost.
    AfterExec,
}

/// Stands before a server, and cuts each connection at its `n`th EXEC, counted from 1.
pub struct Proxy {
    pub port: u16,
}

const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

impl Proxy {
    /// For the server on `port`. Its threads end with their connections; the listener lasts as long as the test.
    pub fn start(port: u16, cut: Cut, n: usize) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let own = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", port)).expect("the server");
                server.set_nodelay(true).expect("no delay");
                client.set_nodelay(true).expect("no delay");
                let (from, to) = (server.try_clone().expect("a clone"), client.try_clone().expect("a clone"));
                thread::spawn(move || pass_all(from, to));
                thread::spawn(move || pass_until(client, server, cut, n));
            }
        });
        Proxy { port: own }
    }
}

fn pass_all(mut from: TcpStream, mut to: TcpStream) {
    let mut buf = [0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buf) {
        if to.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn pass_until(mut client: TcpStream, mut server: TcpStream, cut: Cut, n: usize) {
    let (mut buf, mut held, mut seen) = ([0; 16 * 1024], Vec::new(), 0);
    while let Ok(read @ 1..) = client.read(&mut buf) {
        held.extend_from_slice(&buf[..read]);
        while let Some(at) = held.windows(EXEC.len()).position(|w| w == EXEC) {
            seen += 1;
            if seen == n {
                let end = if cut == Cut::AfterExec { at + EXEC.len() } else { at };
                if cut == Cut::AfterExec {
                    // Nothing of the answer may pass.
                    let _ = client.shutdown(Shutdown::Both);
                }
                let _ = server.write_all(&held[..end]);
                let _ = server.shutdown(Shutdown::Write);
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
            let _ = server.write_all(&held[..at + EXEC.len()]);
            held.drain(..at + EXEC.len());
        }
        // What may be the beginning of an EXEC stays.
        let keep = held.len().min(EXEC.len() - 1);
        let pass = held.len() - keep;
        let ends_whole = held.ends_with(b"\r\n") && !EXEC.starts_with(tail_from_star(&held));
        let pass = if ends_whole { held.len() } else { pass };
        if server.write_all(&held[..pass]).is_err() {
            break;
        }
        held.drain(..pass);
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// What follows the last `*` of the bytes, with it.
fn tail_from_star(bytes: &[u8]) -> &[u8] {
    bytes.iter().rposition(|b| *b == b'*').map_or(b"none", |at| &bytes[at..])
}
