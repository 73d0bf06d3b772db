//! Topologies that are written down.

use std::iter;

use memcg::kmem::{NodeId, Topology, TopologyError};

fn fixed<const N: usize>(nodes: [(u16, &[usize]); N]) -> Result<Topology, TopologyError> {
    Topology::fixed(nodes.map(|(node, processors)| (NodeId::new(node), processors.to_vec())))
}

#[test]
fn nodes_stand_in_their_order() {
    let machine = fixed([(9, &[3]), (2, &[0, 1]), (4, &[])]).expect("a machine");
    assert_eq!(
        machine.nodes().map(NodeId::get).collect::<Vec<_>>(),
        [2, 4, 9]
    );
    assert_eq!(
        format!("{machine:?}"),
        r#"Topology {2: "0-1", 4: "", 9: "3"}"#
    );
    assert!(machine.nodes().all(|node| machine.is_online(node)));
    assert_eq!(
        machine,
        fixed([(2, &[1, 0]), (4, &[]), (9, &[3])]).expect("the same")
    );
    assert_ne!(
        machine,
        fixed([(2, &[0, 1]), (4, &[3]), (9, &[])]).expect("another")
    );
    assert_eq!(machine, machine.clone());
}

#[test]
fn a_thread_is_on_a_node_with_processors() {
    // Whatever this machine has: every other processor, and no node for those beyond.
    let nodes = [0, 1].map(|node| {
        (
            NodeId::new(node),
            (0..64).filter(move |cpu| cpu % 2 == usize::from(node)),
        )
    });
    let machine = Topology::fixed(nodes).expect("a machine");
    assert!(machine.has_processors(machine.current_node()));
    // Here no processor of this machine is known.
    let elsewhere = fixed([(5, &[]), (7, &[60_000])]).expect("a machine");
    assert_eq!(elsewhere.current_node(), NodeId::new(5), "the first");
}

#[test]
fn a_thread_runs_this() {
    let machine = fixed([(3, &[]), (1, &[])]).expect("a machine");
    assert_eq!(
        (machine.processor_count(), machine.node_of_processor(0)),
        (1, Some(NodeId::new(1)))
    );
}

#[test]
fn what_does_not_fit_together() {
    let node = NodeId::new;
    assert_eq!(fixed([]), Err(TopologyError::NoNodes));
    assert_eq!(
        fixed([(1, &[0]), (1, &[1])]),
        Err(TopologyError::NodeTwice { node: node(1) })
    );
    let twice = |processor, a, b| {
        Err(TopologyError::ProcessorTwice {
            processor,
            nodes: [node(a), node(b)],
        })
    };
    assert_eq!(fixed([(0, &[0, 1]), (1, &[2, 1])]), twice(1, 0, 1));
    assert_eq!(fixed([(0, &[4, 4])]), twice(4, 0, 0));
    let too_large = TopologyError::ProcessorTooLarge {
        processor: usize::MAX,
        node: node(2),
        most: 65_536,
    };
    assert_eq!(
        too_large.to_string(),
        format!(
            "processor {} of node 2: numbers stay below 65536",
            usize::MAX
        )
    );
    assert_eq!(fixed([(2, &[usize::MAX])]), Err(too_large));
}

#[test]
fn sixty_four_nodes() {
    let nodes = |count| (0..count).map(|node| (NodeId::new(node), iter::once(usize::from(node))));
    assert_eq!(
        Topology::fixed(nodes(64))
            .expect("just so many")
            .nodes()
            .len(),
        64
    );
    assert_eq!(
        Topology::fixed(nodes(65)),
        Err(TopologyError::TooManyNodes { most: 64 })
    );
}

#[test]
fn what_never_ends() {
    let node = NodeId::new;
    let machine = Topology::fixed([(node(0), 0..)]);
    assert!(matches!(
        machine,
        Err(TopologyError::ProcessorTooLarge {
            processor: 65_536,
            ..
        })
    ));
    let machine = Topology::fixed([(node(0), iter::repeat(7))]);
    assert!(matches!(
        machine,
        Err(TopologyError::ProcessorTwice { processor: 7, .. })
    ));
    let machine = Topology::fixed((0..=u16::MAX).cycle().map(|number| (node(number), [])));
    assert_eq!(machine, Err(TopologyError::TooManyNodes { most: 64 }));
}
