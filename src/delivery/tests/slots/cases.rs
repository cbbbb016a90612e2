//! The shortest break of each rule of the cluster, as a schedule.

#[test]
fn debug_one() {
    use super::ops::Op::*;
    use super::source::{Source, Spec};
    use super::world::{Around, World};
    let spec = Spec { kind: 0, a: 0, b: 0 };
    let mut world = World::new(
        Source::new(&[spec; 6], 0),
        2,
        2,
        crate::delivery::rules::SlotRules { flush_commands_max: 1, ..Default::default() },
        Around::default(),
    );
    world.warm_up().unwrap();
    for op in [Move(3, 2), MoveKey, Push(1), RollBack(0, 1), MoveEnd] {
        println!("{op:?}");
        world.step(op).unwrap();
        println!("{:?} {:?}", world.nodes.motion, world.nodes.owner);
    }
    for op in [Connect, Push(1), Connect] {
        println!("{op:?} {:?}", world.step(op));
    }
    world.drain().unwrap();
}
