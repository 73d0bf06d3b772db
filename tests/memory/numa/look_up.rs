//! A look-up answers for the pages that it is given, and for no other.

use std::sync::Arc;

use memcg::kmem::{NodeId, NodeOf, OneNode, PageNode};

#[test]
fn the_only_node_is_known_through_whatever_stands_before_it() {
    let one = OneNode::new(NodeId::new(7));
    let boxed: Box<dyn NodeOf> = Box::new(one);
    let counted: Arc<dyn NodeOf> = Arc::new(one);
    for node_of in [&one as &dyn NodeOf, &&one, &boxed, &counted] {
        assert_eq!(node_of.only_node(), Some(NodeId::new(7)));
        let mut found = [PageNode::Zero; 3];
        node_of.look_up(&[0], &mut found);
        assert_eq!(found[1..], [PageNode::Zero; 2]);
        node_of.look_up(&[0; 9], &mut found[..2]);
        assert_eq!((found[2], found[0]), (PageNode::Zero, found[1]));
        node_of.look_up(&[], &mut found);
        assert!(node_of.page_size().is_power_of_two());
    }
}
