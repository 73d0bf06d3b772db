//! What the plugins hold, and the heap that it really takes.

#[path = "../../../tests/counting.rs"]
mod counting;

use counting::{Heap, assert_close};

use super::*;

#[test]
fn heap_is_what_plugins_are_charged() {
    let runtime = Runtime::builder().build().unwrap();
    let spec: GroupSpec = toml::from_str(FILE).unwrap();
    spec.apply(&runtime.root()).unwrap();
    for (name, calls) in [("search", 150), ("leaky", 100)] {
        let group = runtime.group(&format!("{PLUGINS}{name}")).unwrap();
        let heap = Heap::measure();
        let mut plugin = load(&group).unwrap();
        for number in 0..calls {
            plugin.call(&group, number).unwrap();
        }
        assert_close(name, heap.live(), group.live());
        assert_close(&format!("{name}, peak"), heap.peak(), group.peak());
    }
    let group = runtime.group("/plugins/thumbnails").unwrap();
    let heap = Heap::measure();
    Thumbnails.call(&group, 0).unwrap();
    assert_close("thumbnails, peak", heap.peak(), group.peak());
}
