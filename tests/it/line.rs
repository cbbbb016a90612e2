//! A line to a server that can be turned to another, as an address that moves in a failover.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Listens on a port of its own and passes connections on. Its threads end with the test's process.
pub struct Line {
    pub port: u16,
    to: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Line {
    pub fn to(port: u16) -> Line {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let line = Line {
            port: listener.local_addr().expect("an address").port(),
            to: Arc::new(AtomicU16::new(port)),
            open: Arc::default(),
        };
        let (to, open) = (Arc::clone(&line.to), Arc::clone(&line.open));
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))) else { continue };
                let mut open = open.lock().expect("the list of connections");
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let (Ok(from), Ok(into), Ok(kept)) = (from.try_clone(), into.try_clone(), from.try_clone()) else {
                        continue;
                    };
                    open.push(kept);
                    thread::spawn(move || pump(from, into));
                }
            }
        });
        line
    }

    /// New connections go to another server, and those that stand are cut.
    pub fn turn_to(&self, port: u16) {
        self.to.store(port, Ordering::SeqCst);
        for stream in self.open.lock().expect("the list of connections").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pump(mut from: TcpStream, mut into: TcpStream) {
    let mut buf = [0; 65_536];
    while let Ok(n) = from.read(&mut buf) {
        if n == 0 || into.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}
