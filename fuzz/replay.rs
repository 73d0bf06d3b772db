//! What a target is without libFuzzer: a program that replays the files and folders it is given, so
//! a corpus can be checked on the stable toolchain.

/// Every file named on the command line, or in a folder named there, through `run`.
pub fn replay(run: impl Fn(&[u8])) -> std::io::Result<()> {
    let mut paths: Vec<std::path::PathBuf> = std::env::args_os().skip(1).map(Into::into).collect();
    let mut replayed = 0_usize;
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                paths.push(entry?.path());
            }
        } else {
            run(&std::fs::read(path)?);
            replayed += 1;
        }
    }
    println!("{replayed} inputs hold");
    Ok(())
}
