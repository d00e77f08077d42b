const groups=[...document.querySelectorAll('.items')];
const sort=document.getElementById('sort'),filter=document.getElementById('filter');
function arrange(){
  const words=filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  for(const group of groups){
    const items=[...group.children];
    items.sort((a,b)=>sort.value==='name'?a.dataset.name.localeCompare(b.dataset.name,undefined,{numeric:true})
      :b.dataset.score-a.dataset.score);
    for(const item of items){
      const name=item.dataset.name.toLowerCase();
      item.hidden=!words.every(word=>name.includes(word));
    }
    group.append(...items);
  }
}
if(sort){sort.onchange=arrange;filter.oninput=arrange}
for(const pictures of document.querySelectorAll('.pictures'))
  pictures.onclick=()=>pictures.parentElement.classList.toggle('open');
