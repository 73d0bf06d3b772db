//! Bad traces and bad arguments: one line that says where.

use super::{Folder, gzip, refusal, run, trace};

#[test]
fn bad_traces_are_named_with_file_and_line() {
    let folder = Folder::new("bad");
    let missing = folder.0.join("missing.csv");
    assert!(
        refusal(&[], &[&missing]).starts_with(&format!("{}: cannot open the trace: ", missing.display())),
        "a file that is not there has no lines; the system's own words follow"
    );

    let long_line = format!("key,size\n{}", "7".repeat(10_000));
    let cases: [(&str, &[u8], u64, &str); 13] = [
        ("empty.csv", b"", 1, "the file is empty, expected the head line `key,size`"),
        ("blank.csv", b"\n\n", 1, "the file is empty, expected the head line `key,size`"),
        ("head.csv", b"key,size\n", 2, "no request follows the head line"),
        ("wrong.csv", b"id,bytes\n1,2\n", 1, "head line \"id,bytes\" where `key,size` is expected"),
        ("headless.csv", b"1,2\n", 1, "head line \"1,2\" where `key,size` is expected"),
        ("binary.csv", b"\x7fELF\xff\0", 1, "head line \"\\u{7f}ELF\u{fffd}\\0\" where `key,size` is expected"),
        ("word.csv", b"key,size\n1,2\n2,two\n", 3, "size \"two\" is no whole number of 64 bits"),
        ("sign.csv", b"key,size\n-1,2\n", 2, "key \"-1\" is no whole number of 64 bits"),
        (
            "huge.csv",
            b"key,size\n1,18446744073709551616\n",
            2,
            "size \"18446744073709551616\" is no whole number of 64 bits",
        ),
        ("zero.csv", b"key,size\r\n1,2\r\n\r\n2,0\r\n", 4, "size 0, an entry has at least one byte"),
        ("short.csv", b"key,size\n1,2\n3\n", 3, "expected the two fields `key,size`, found 1"),
        ("wide.csv", b"key,size\n1,2,3\n", 2, "expected the two fields `key,size`, found 3"),
        ("long.csv", long_line.as_bytes(), 2, "expected the two fields `key,size`, found 1"),
    ];
    for (name, bytes, line, fault) in cases {
        let path = folder.file(name, bytes);
        assert_eq!(refusal(&[], &[&path]), format!("{}:{line}: {fault}", path.display()));
        // Behind a good trace, and packed, it is the same fault.
        let good = folder.file("good.csv", trace([(1, 1)]));
        let packed = folder.file("packed", gzip(&String::from_utf8_lossy(bytes)));
        assert_eq!(refusal(&[], &[&good, &packed]), format!("{}:{line}: {fault}", packed.display()));
    }
}

#[test]
fn damaged_gzip_is_named() {
    let folder = Folder::new("damaged");
    let whole = gzip(&trace((0..5_000).map(|key| (key, 1 + key * key % 1_009))));
    let mut paths = vec![
        folder.file("cut.csv.gz", &whole[..whole.len() / 2]),
        folder.file("fake.csv.gz", b"\x1f\x8bnothing of the kind"),
    ];
    // A byte that differs, at the head and further on: most of such files decode to text, and the text is wrong.
    for at in (10..whole.len() - 8).step_by(whole.len() / 40) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x15;
        paths.push(folder.file(&format!("flipped{at}.csv.gz"), &bytes));
    }
    for path in paths {
        let message = refusal(&[], &[&path]);
        let rest = message.strip_prefix(&format!("{}:", path.display())).expect("the file");
        let (line, fault) = rest.split_once(": ").expect("the line");
        assert!(line.parse::<u64>().is_ok_and(|line| line >= 1), "{message}");
        assert!(fault.starts_with("the gzip data is damaged: "), "{message}");
    }
}

#[test]
fn gzip_by_its_name_alone_is_named() {
    let folder = Folder::new("no-gzip");
    let mut beheaded = gzip(&trace([(1, 1)]));
    beheaded[0] ^= 0x20;
    for (name, bytes) in [("beheaded.csv.gz", beheaded), ("lost.GZ", vec![0; 64])] {
        let path = folder.file(name, bytes);
        let fault = "the file is no trace, and no gzip data either, as its name says";
        assert_eq!(refusal(&[], &[&path]), format!("{}:1: {fault}", path.display()));
    }
}

#[test]
fn bad_arguments_are_named() {
    for (args, words) in [
        (["--budget", "64mb"], "\"64mb\" is no size: unknown unit at byte 2; expected 4096, 64KiB, 1.5GiB or 64MB"),
        (["--budget", "max"], "expected a digit at byte 0"),
        (["--budget", "0"], "expected more than 0 bytes"),
        (["--tenant-max", "101%"], "\"101%\" is no limit: a percentage above 100 at byte 0"),
        (["--requests", "0"], "0 is not in 1.."),
        (["--threads", "0"], "number would be zero"),
        (["--seconds", "0"], "expected more than 0 seconds"),
        (["--seconds", "1e99"], "expected more than 0 seconds"),
        (["--seconds", "soon"], "expected a number of seconds"),
        (["--live", "0"], "expected more than 0 seconds"),
        (["--format", "xml"], "possible values: text, json, csv"),
        (["--policy", "fair"], "possible values: shared, static, memcg, waiting"),
        (["--low", "101%"], "no tenant can be promised more than its fair share"),
        (["--low", "max"], "no tenant can be promised more than its fair share"),
        (["--low", "90"], "expected a percentage, as 90%, or max"),
        (["--soft", "-1%"], "unexpected argument '-1' found"),
        (["--soft", "1MiB"], "expected a percentage, as 90%, or max"),
        (["--wait", "20"], "expected a time, as 20ms: "),
        (["--wait", "forever)"], "expected a time, as 20ms: "),
        (["--wait", "20ms"], "--wait is for --policy waiting and for --compare"),
        (["--kill", "--wait=20ms"], "--wait is for --policy waiting and for --compare"),
        (["--high", "1MiB"], "expected a percentage, as 90%, or max"),
        (["--policy=waiting", "--high=90%"], "--high is for --policy memcg, for --compare and for --kill"),
        (["--policy", "unlimited"], "possible values: shared, static, memcg, waiting"),
        (["--noisy", "0"], "0 is not in 1..=1000"),
        (["--compare", "--seconds=1"], "cannot be used with"),
        (["--compare", "--policy=shared"], "cannot be used with"),
        (["--compare", "--tenant-max=1K"], "cannot be used with"),
        (["--kill", "--compare"], "cannot be used with"),
        (["--kill", "--policy=memcg"], "cannot be used with"),
        (["--kill", "--live=1"], "cannot be used with"),
        (["--kill", "--html=page.html"], "cannot be used with"),
        (["--html=one", "--svg=one"], "--html and --svg name the same file"),
        (["--width", "19"], "19 is not in 20.."),
        (["--compare", "--all"], "leave them out with --compare and --kill"),
        (["--kill", "--details"], "leave them out with --compare and --kill"),
        (["--kill-form", "memcg"], "not provided:\n  --kill"),
    ] {
        let output = run(&args, &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{words:?} is not in {stderr}");
    }
}

#[test]
fn budget_that_the_machine_does_not_have_is_refused() {
    if cfg!(target_os = "linux") {
        let message = refusal(&["--budget", "8PiB"], &[]);
        assert!(message.starts_with("the clusters would fill a budget of 8 PiB, and the machine has "), "{message}");
    }
}
