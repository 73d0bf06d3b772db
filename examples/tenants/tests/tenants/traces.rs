//! Traces: what is kept, what goes, what comes back with another size.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Folder, cost, figures, folder_of_traces, gzip, number, report, run, tenants, trace};

#[test]
fn oldest_entry_goes_for_a_new_one() {
    let folder = Folder::new("oldest");
    // Room for three: the hit on 1 keeps it, so 2 goes for 4, then 2 is a miss and 3 goes.
    let requests = [(1, 10), (2, 10), (3, 10), (1, 10), (4, 10), (2, 10), (1, 10)];
    let path = folder.file("t.csv", trace(requests));
    let three = 3 * cost(10);
    for stock in [&["--no-stock"][..], &["--batch", "8B"], &["--batch", "64KiB"]] {
        let report = report(&[&["--budget", &three.to_string()], stock].concat(), &[&path]);
        assert_eq!(figures(&report, 0), [2, three, 2, 0], "{stock:?}");
    }
}

#[test]
fn entry_that_can_never_fit_passes_through_and_evicts_nothing() {
    let folder = Folder::new("never");
    let path = folder.file("t.csv", trace([(1, 10), (2, 3_000), (1, 10), (3, u64::MAX), (1, 10)]));
    let budget = (2 * cost(10)).to_string();
    assert_eq!(figures(&report(&["--budget", &budget], &[&path]), 0), [2, cost(10), 0, 2]);
    assert_eq!(figures(&report(&["--budget", "1"], &[&path]), 0), [0, 0, 0, 5]);
}

#[test]
fn entry_that_comes_back_with_another_size_is_resized() {
    let folder = Folder::new("resized");
    let budget = cost(250).to_string();
    for (sizes, hits, live) in [
        (&[10, 250, 250][..], 1, cost(250)),
        (&[250, 10, 10], 1, cost(10)),
        // The same for the allocator, not the same for a reader.
        (&[250, 249, 250], 0, cost(250)),
    ] {
        let path = folder.file("t.csv", trace(sizes.iter().map(|&size| (1, size))));
        assert_eq!(figures(&report(&["--budget", &budget], &[&path]), 0), [hits, live, 0, 0], "{sizes:?}");
    }
}

#[test]
fn resize_that_does_not_fit_keeps_the_old_entry() {
    let folder = Folder::new("kept");
    // Larger than any room there could be.
    let path = folder.file("t.csv", trace([(1, 1_000), (1, 2_000), (1, 1_000)]));
    let budget = cost(1_000).to_string();
    assert_eq!(figures(&report(&["--budget", &budget], &[&path]), 0), [1, cost(1_000), 0, 1]);
}

/// Low is kept while any other tenant has something to give, and here no tenant does.
#[test]
fn resize_takes_the_entry_of_another_tenant_below_its_low_at_last() {
    let folder = Folder::new("low");
    let path = folder.file("t.csv", trace([(1, 1_000), (1, 2_000), (1, 1_000)]));
    let other = folder.file("other.csv", trace([(1, 1_000)]));
    let live = cost(1_000);
    let budget = (2 * live).to_string();
    let mut outcomes: Vec<_> = (0..16)
        .map(|seed: u32| {
            let seed = seed.to_string();
            let args = ["--budget", &budget, "--threads", "1", "--seed", &seed, "--low", "100%"];
            let report = report(&args, &[&path, &other]);
            assert_eq!(figures(&report, 0), [0, live, 0, 0]);
            assert_eq!(report["evicted_for_others"], report["evicted"]);
            ["live_bytes", "evicted", "below_low"].map(|figure| number(&report[figure]))
        })
        .collect();
    outcomes.sort_unstable();
    outcomes.dedup();
    // The other comes first, or finds room.
    assert_eq!(outcomes, [[live, 1, 1], [2 * live, 0, 0]]);
}

#[test]
fn resize_makes_room_like_a_new_entry() {
    let folder = Folder::new("grown");
    let path = folder.file("t.csv", trace([(1, 10), (2, 10), (3, 10), (1, 1_000), (1, 1_000)]));
    let budget = cost(1_000) + cost(10);
    let report = report(&["--budget", &budget.to_string()], &[&path]);
    assert_eq!(figures(&report, 0), [1, budget, 1, 0]);
    assert!(number(&report["met_budget"]) > 0);
}

#[test]
fn tenant_below_its_share_takes_from_the_one_above() {
    let folder = Folder::new("share");
    let paths = ["a.csv", "b.csv"].map(|name| folder.file(name, trace([(1, 1_000)])));
    // Room for one: a tenant that comes second has nothing, and the first has twice its share.
    let budget = cost(1_000).to_string();
    let report = report(&["--budget", &budget, "--threads", "1"], &[&paths[0], &paths[1]]);
    let totals = ["live_bytes", "met_budget", "evicted", "passed_through"].map(|figure| number(&report[figure]));
    assert_eq!(totals, [cost(1_000), 1, 1, 0]);
}

#[test]
fn tenant_max_holds_below_the_budget() {
    let folder = Folder::new("tenant-max");
    let path = folder.file("t.csv", trace((0..50).map(|key| (key, 1_000))));
    let ten = 10 * cost(1_000);
    for max in ["25%", &ten.to_string()] {
        let report = report(&["--budget", &(4 * ten).to_string(), "--tenant-max", max], &[&path, &path]);
        for tenant in 0..2 {
            assert_eq!(figures(&report, tenant), [0, ten, 40, 0]);
            assert_eq!(number(&tenants(&report)[tenant]["peak"]), ten);
        }
    }
}

#[test]
fn gzip_is_seen_in_the_bytes_and_not_in_the_name() {
    let folder = Folder::new("gzip");
    let text = trace((0..2_000).map(|i| (i * i % 97, 100 + i * i % 97)));
    let plain = folder.file("plain.csv.gz", &text);
    let packed = folder.file("packed.csv", gzip(&text));
    // Two members one after the other are one file.
    let members = folder.file("members", [gzip(&text[..700]), gzip(&text[700..])].concat());

    let args = ["--threads", "1", "--budget", "10K", "--no-stock"];
    let results = [&plain, &packed, &members].map(|path| figures(&report(&args, &[path]), 0));
    assert!(results[0][0] > 0 && results[0][2] > 0);
    assert_eq!(results, [results[0]; 3]);
}

#[test]
fn tenants_are_named_after_their_files() {
    let folder = Folder::new("names");
    let text = trace([(1, 1)]);
    let (first, second) = (folder.file("a.csv.gz", &text), folder.file("b.csv", &text));
    let traces = report(&["--threads", "9"], &[&first, &second, &first, &first]);
    let names: Vec<_> = tenants(&traces).iter().map(|tenant| &tenant["tenant"]).collect();
    assert_eq!(names, ["a", "b", "a#2", "a#3"]);
    assert_eq!(traces["threads"], 4);
}

#[test]
fn traces_stand_behind_the_clusters() {
    let folder = Folder::new("both");
    let paths = ["a.csv", "cluster07.csv"].map(|name| folder.file(name, trace([(1, 1)])));
    let args = ["--clusters", "--budget", "1MiB", "--requests", "20000"];
    let report = report(&args, &[&paths[0], &paths[1]]);
    let behind: Vec<_> = tenants(&report)[53..].iter().map(|tenant| &tenant["tenant"]).collect();
    assert_eq!(behind, ["a", "cluster07#2"]);
    assert_eq!(number(&tenants(&report)[53]["requests"]), 1, "a trace ends, the clusters go on");
    assert_eq!(number(&report["requests"]), 20_000);
}

#[test]
fn requests_cap_the_run() {
    let folder = Folder::new("cap");
    // A bad line behind the cap is not read.
    let path = folder.file("t.csv", trace((0..10).map(|key| (key, 1))) + "bad\n");
    for (cap, served) in [("10", 10), ("3", 3)] {
        assert_eq!(number(&report(&["--requests", cap], &[&path, &path])["requests"]), served);
    }
}

#[test]
fn blank_lines_and_line_ends_do_not_matter() {
    let folder = Folder::new("blank");
    let path = folder.file("t.csv", "key,size\r\n\r\n 1 , 5 \r\n\n1,5");
    assert_eq!(figures(&report(&[], &[&path]), 0), [1, cost(5), 0, 0]);
}

#[test]
fn table_shows_every_tenant_and_the_verdict() {
    let folder = Folder::new("table");
    let path = folder.file("shop.csv", trace([(1, 2 << 20), (1, 2 << 20)]));
    let output = run(&["--no-stock", "--audit", "false", "--details"], &[&path]);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).expect("text");
    for word in ["shop", "0.5000", "2 MiB", "256 MiB", "in 1 of 1 tenants", "ok, without audit"] {
        assert!(table.contains(word), "{word:?} is not in\n{table}");
    }
}

/// The production traces, where `MEMCG_TRACES` names their folder.
#[test]
fn production_traces_add_up() {
    let Some(folder) = folder_of_traces() else { return };
    let files = fs::read_dir(&folder).expect("the folder of MEMCG_TRACES");
    let mut traces: Vec<_> = files.map(|file| file.expect("listed").path()).collect();
    traces.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    assert!(!traces.is_empty(), "no trace in {}", folder.display());
    let traces: Vec<&Path> = traces.iter().map(PathBuf::as_path).collect();
    for how in [&["--no-stock"][..], &[], &["--clusters"]] {
        report(&[&["--requests", "90000", "--budget", "32MiB"], how].concat(), &traces);
    }
}
