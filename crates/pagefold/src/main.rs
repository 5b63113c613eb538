//! The `pagefold` command.

fn main() -> anyhow::Result<()> {
    Ok(())
}
