//! Values as commands.
#[derive(Debug)]
pub struct Rewriter;
#[derive(Debug)]
pub struct TargetCaps;
#[derive(Debug)]
pub struct Unsupported;
pub fn commands() {}
