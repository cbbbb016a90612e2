//! Slots of a cluster that move, with keys, under load.

use super::ends::Load;
use super::ferry::Ferry;
use crate::cluster::Cluster;
use fastrand::Rng;

/// How a slot goes to another primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// SETSLOT and MIGRATE.
    Keys,
    /// CLUSTER MIGRATESLOTS or CLUSTER MIGRATION IMPORT.
    Atomic,
    /// Begun, and turned back.
    Back,
}

/// How many slots go along in an atomic move, at most.
const RANGE_MAX: u16 = 60;

impl Way {
    pub fn some(cluster: &Cluster, rng: &mut Rng) -> Way {
        let all: &[Way] = if moves_atomically(cluster) {
            &[Way::Keys, Way::Keys, Way::Atomic, Way::Atomic, Way::Back]
        } else {
            &[Way::Keys, Way::Keys, Way::Back]
        };
        all[rng.usize(0..all.len())]
    }
}

/// Whether the servers can move slots in one piece.
fn moves_atomically(cluster: &Cluster) -> bool {
    let node = &cluster.nodes[0];
    node.version() >= if node.is_valkey() { (9, 0) } else { (8, 4) }
}

/// Moves a slot of the load's. With a `ferry` that is killed when half of the keys are moved.
///
/// `keys_turn_back`: of a move that is turned back, keys had gone.
pub fn move_some(
    cluster: &Cluster,
    load: &Load,
    rng: &mut Rng,
    (way, keys_turn_back): (Way, bool),
    mut killed: Option<&mut Ferry>,
) {
    // Valkey tells its replicas first, and refuses without.
    cluster.until_whole();
    let (slot, owners) = (load.some_slot(rng), cluster.owners());
    let from = cluster.owner(slot);
    let others: Vec<usize> = owners.into_iter().filter(|node| *node != from).collect();
    let to = others[rng.usize(0..others.len())];
    match way {
        Way::Atomic => {
            let last = slot.saturating_add(rng.u16(0..RANGE_MAX)).min(16383);
            let last = (slot..=last).take_while(|slot| cluster.owner(*slot) == from).last().unwrap_or(slot);
            cluster.move_slots_atomically(slot, last, to);
            if let Some(ferry) = killed {
                ferry.kill();
                ferry.start_again();
            }
        }
        Way::Keys => {
            cluster.begin_move(slot, to);
            let mut parts = 0;
            while cluster.move_keys(slot, from, to, 1 + rng.usize(0..8)) > 0 {
                parts += 1;
                if parts == 2 {
                    load.until_some(rng, 300);
                    if let Some(ferry) = killed.take() {
                        ferry.kill();
                        ferry.start_again();
                    }
                }
            }
            cluster.end_move(slot, from, to);
        }
        Way::Back => {
            cluster.begin_move(slot, to);
            if keys_turn_back {
                cluster.move_keys(slot, from, to, 1 + rng.usize(0..8));
            }
            load.until_some(rng, 300);
            cluster.turn_back(slot, from, to);
        }
    }
    cluster.until_ok();
}
